"""Targets beyond one class: how tables are read, what they refuse, and how splits stratify."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.random_bags import types_not_executed
from support.refusals import refused

from probsa.core import TaskName
from probsa.datasets import (
    LabelTable,
    Split,
    balanced_epoch,
    check_training_part,
    drop_bags,
    make_split,
    protocol_splits,
    read_table,
)
from probsa.errors import InputError, TableError
from probsa.tasks import TargetOptions


def table(
    tmp_path: Path, text: str, *, task: str = "auto", target: object = None, **options: object
) -> LabelTable:
    path = tmp_path / "labels.csv"
    path.write_text(text, encoding="utf-8")
    return read_table(path, target=TargetOptions(task=task, target=target), **options)


def made(task: TaskName, values: list[tuple[float, ...]], labels: list[int], **more) -> LabelTable:
    columns = {"survival": ("time", "event"), "multilabel": ("x", "y")}.get(task, ("label",))
    return LabelTable(
        bags=tuple(f"b{i:02}" for i in range(len(labels))),
        labels=tuple(labels),
        values=tuple(values),
        task=task,
        target=columns,
        **{"classes": columns if task == "multilabel" else (), **more},
    )


def split_of(t: LabelTable, parts: str) -> Split:
    names = {k: tuple(b for b, p in zip(t.bags, parts, strict=True) if p == k) for k in "tve"}
    return Split(train=names["t"], val=names["v"], test=names["e"], origin="by hand")


def test_options():
    assert TargetOptions(unit="slide").unit == "bag"
    with types_not_executed():  # as YAML gives it
        assert TargetOptions(target=["a", "b"]).columns == ("a", "b")
    assert TargetOptions(target="a").columns == ("a",)
    with (
        types_not_executed(),
        pytest.raises(InputError, match=r"task .*'classification'.*survival"),
    ):
        TargetOptions(task="classification")
    with types_not_executed(), pytest.raises(InputError, match=r"unit .*'case'"):
        TargetOptions(unit="case")


def test_classes_are_taken_as_before(tmp_path):
    t = table(tmp_path, "bag,label\na,1\nb,0\n")
    assert (t.task, t.target, t.values, t.notes) == ("binary", ("label",), ((1.0,), (0.0,)), ())
    assert table(tmp_path, "bag,label\na,1\nb,0\nc,2\n").task == "multiclass"
    assert table(tmp_path, "bag,label\na,1\nb,0\n", task="multiclass").task == "multiclass"
    t = table(tmp_path, "bag,grade,label\na,x,0\nb,y,1\n", target="grade", classes=["x", "y"])
    assert (t.labels, t.target, t.classes) == ((0, 1), ("grade",), ("x", "y"))
    assert replace(t, labels=(None, 1)).values == (None, (1.0,))
    assert LabelTable(bags=("a",), labels=(2,), classes=("0", "1", "2")).task == "multiclass"
    assert drop_bags(t, ["a"]).values == ((1.0,),)


def test_other_targets_are_never_guessed(tmp_path):
    many = "bag,label\n" + "".join(f"b{i},{i}\n" for i in range(21))
    with pytest.raises(TableError, match=r"'label' .*21"):
        table(tmp_path, many)
    assert len(table(tmp_path, many, task="multiclass").classes) == 21
    assert len(table(tmp_path, many, classes=[str(i) for i in range(21)]).classes) == 21


def test_columns_are_known_if_they_are_named(tmp_path):
    text = "slide,patient,label,age\na,p,1,60\nb,q,0,\n"
    t = table(tmp_path, text, covariates=["age"])
    assert (t.bags, t.groups, t.labels) == (("a", "b"), ("p", "q"), (1, 0))
    assert table(tmp_path, "FILENAME,PATIENT,label\na,p,1\n").groups == ("p",)


def test_survival(tmp_path):
    text = "bag,os,dead\na,2,1\nb,3.5,alive\nc,1,TRUE\nd,,\n"
    t = table(tmp_path, text, task="survival", target=("os", "dead"), labels_required=False)
    assert t.values == ((2.0, 1.0), (3.5, 0.0), (1.0, 1.0), None)
    assert (t.labels, t.classes, t.target) == ((1, 0, 1, None), (), ("os", "dead"))
    facts = ("survival", "'os', 'dead'", "2 events", "1 censored", "1 to 3.5", "4 bags", "25%")
    assert [fact for fact in facts if fact not in t.describe()] == []
    plain = table(tmp_path, "bag,time,event\na,2,1\nb,3,0.0\n", task="survival")
    assert (plain.values, plain.notes) == (((2.0, 1.0), (3.0, 0.0)), ())


CENSORING_NAMES = (
    *("censorship", "os_censorship", "censorship_dss", "censored", "is_censored", "Censor"),
    *("right_censoring", "isCensored", "OS.censor", "CENSORED", "alive", "is_alive"),
    *("survived", "not_dead", "no_event", "lost_to_follow_up"),
)
EVENT_NAMES = (
    *("event", "os_event", "uncensored", "not_censored", "notCensored", "non-censored"),
    *("noncensored", "uncensored!", "OS_STATUS", "vital_status", "dead", "Died", "os", "recurred"),
    *("progression_free_survival_event",),
)
UNCLEAR_NAMES = (
    *("event_censored", "death_censored_loss", "overall_survival", "dead_or_alive", "cens"),
    *("censoring_indicator", "event_free"),
)
CODES = (("1", "0"), ("1.0", "0.0"), ("True", "False"), ("TRUE", "FALSE"), ("yes", "no"))


def survival_table(tmp_path: Path, column: str, cells: tuple[str, ...], **options) -> LabelTable:
    rows = "".join(f"b{k},{k + 1},{cell}\n" for k, cell in enumerate(cells))
    text = f"bag,months,{column}\n{rows}"
    return table(tmp_path, text, task="survival", target=("months", column), **options)


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("column", [*CENSORING_NAMES, *EVENT_NAMES])
def test_the_name_of_a_column_says_which_way_its_codes_run(tmp_path, column, codes):
    yes, no = codes
    t = survival_table(tmp_path, column, (yes, no, yes, yes))
    yes_is_event = int(column in EVENT_NAMES)
    assert t.labels == (yes_is_event, 1 - yes_is_event, yes_is_event, yes_is_event)
    assert {yes: float(yes_is_event), no: 1.0 - yes_is_event} == t.codes
    # that 1 stands for a censored bag is noted
    assert len(t.notes) == 1 - yes_is_event and all(repr(column) in note for note in t.notes)
    assert repr(column) in t.describe()


@pytest.mark.parametrize("column", UNCLEAR_NAMES)
def test_a_name_that_can_be_read_both_ways_needs_words(tmp_path, column):
    refused(TableError, column, survival_table, tmp_path, column, ("1", "0"))
    assert survival_table(tmp_path, column, ("dead", "censored")).labels == (1, 0)


SEEN_WORDS = (
    *("1:DECEASED", "1:Recurred/Progressed", "1:PROGRESSION", "1:DEAD WITH TUMOR", "DECEASED"),
    *("dead", "Died", "event", "uncensored", "not censored", "relapsed", "1: dead", "1 (dead)"),
    *("1=event",),
)
CENSORED_WORDS = (
    *("0:LIVING", "0:ALIVE", "0:DiseaseFree", "0:CENSORED", "0:ALIVE OR DEAD TUMOR FREE", "LIVING"),
    *("Alive", "censored", "Right-censored", "DiseaseFree", "disease free", "no_event"),
    *("lost to follow-up", "0 - alive"),
)
WORDS = [*((word, 1) for word in SEEN_WORDS), *((word, 0) for word in CENSORED_WORDS)]


@pytest.mark.parametrize(("cell", "event"), WORDS)
def test_words_say_themselves_whether_the_event_was_seen(tmp_path, cell, event):
    for column in ("OS_STATUS", "overall_survival"):
        t = survival_table(tmp_path, column, (cell, "dead", "alive"))
        assert t.labels == (event, 1, 0) and t.codes[cell] == event
    if cell[0] not in "01":
        assert survival_table(tmp_path, "censored", (cell, "0", "1")).labels == (event, 1, 0)


@pytest.mark.parametrize(
    ("column", "cell"),
    [("OS_STATUS", "0:DECEASED"), ("OS_STATUS", "1:LIVING"), ("censored", "1:DECEASED")],
)
def test_a_code_and_a_word_that_disagree_are_refused(tmp_path, column, cell):
    facts = f"line 3, bag 'b1': the column '{column}' is '{cell}', .* code and a word"
    refused(TableError, facts, survival_table, tmp_path, column, ("alive", cell))


@pytest.mark.parametrize(
    ("header", "target"),
    [
        ("time,event,censorship", ("time", "event")),
        ("time,os_censorship", ("time", "os_censorship")),
        ("time,is_censored,status", ("time", "is_censored")),
        ("time,uncensored", ("time", "uncensored")),
        ("time,censorship_dss,censorship", ("time", "censorship")),
    ],
)
def test_the_default_column_of_the_event(tmp_path, header, target):
    columns = len(header.split(","))
    text = f"bag,{header}\n" + "".join(f"{b}{',1' * columns}\n" for b in "ab")
    t = table(tmp_path, text, task="survival")
    assert t.target == target
    assert t.labels == ((1, 1) if target[1] in ("event", "uncensored") else (0, 0))
    two = "bag,time,censorship_os,censorship_dss\na,1,1,1\n"
    refused(TableError, "'censorship_os', 'censorship_dss'", table, tmp_path, two, task="survival")


@pytest.mark.parametrize(
    ("header", "advice"),
    [
        ("site,survival_months,censorship", r"\[survival_months, censorship\]"),
        ("site,OS_MONTHS,OS_STATUS", r"\[OS_MONTHS, OS_STATUS\]"),
        ("tile,survival_days,dead", r"\[survival_days, dead\]"),
        ("timber,days_to_event,event", r"\[days_to_event, event\]"),
        ("site,years,vital_status", r"\[years, vital_status\]"),
        ("site,time_to_death,is_censored", r"\[time_to_death, is_censored\]"),
    ],
)
def test_columns_of_survival_are_suggested_by_their_meaning(tmp_path, header, advice):
    text = f"bag,{header}\na,x,1,1\n"
    refused(TableError, f"--target '{advice}'", table, tmp_path, text, task="survival")
    with pytest.raises(TableError) as error:
        table(tmp_path, text, task="survival")
    assert header.split(",")[0] not in str(error.value).partition("it has")[2].partition(". ")[2]


def test_half_a_target_is_a_missing_label_and_noted(tmp_path):
    text = "bag,time,event\na,1,1\nb,,1\nc,3,NA\nd,4,0\n"
    t = table(tmp_path, text, task="survival", labels_required=False)
    assert t.values == ((1.0, 1.0), None, None, (4.0, 0.0))
    assert any("lines 3 and 4" in note for note in t.notes)
    refused(TableError, "line 3, bag 'b': .*'time'", table, tmp_path, text, task="survival")
    text = text.replace("b,,1", "b,2,1")
    refused(TableError, "line 4, bag 'c': .*'NA'", table, tmp_path, text, task="survival")


def test_ordinal_grades(tmp_path):
    t = table(tmp_path, "bag,label\na,1\nb,0\nc,2\n", task="ordinal")
    assert (t.task, t.labels, t.classes) == ("ordinal", (1, 0, 2), ("0", "1", "2"))
    assert "0 (1), 1 (1), 2 (1)" in t.describe()
    t = table(tmp_path, "bag,label\na,0\nb,1\nc,3\n", task="ordinal", classes=["0", "1", "2", "3"])
    assert t.labels == (0, 1, 3)
    assert len(t.notes) == 1 and "grade 2" in t.notes[0]
    t = table(tmp_path, "bag,label\na,low\nb,high\n", task="ordinal", classes=["low", "high"])
    assert t.labels == (0, 1)
    # grade groups 1 to 3: a number is a name, so 0 is not the first of them
    named = {"task": "ordinal", "classes": ["1", "2", "3"]}
    assert table(tmp_path, "bag,label\na,1\nb,3\nc,2.0\n", **named).labels == (0, 2, 1)


def test_findings(tmp_path):
    text = "bag,oedema,nodule\na,1,0\nb,,1.0\nc,,\n"
    t = table(tmp_path, text, task="multilabel", target=("nodule", "oedema"))
    assert (t.classes, t.target, t.labels) == (("nodule", "oedema"),) * 2 + ((0, 0, None),)
    assert t.values[0] == (0.0, 1.0) and t.values[2] is None
    assert t.values[1][0] == 1.0 and math.isnan(t.values[1][1])
    assert "1 bag" in t.notes[0] and "(c)" in t.notes[0]
    facts = ("nodule (1 positive)", "oedema (1 positive)", "25%")
    assert [fact for fact in facts if fact not in t.describe()] == []
    swapped = table(tmp_path, text, task="multilabel", classes=["oedema", "nodule"])
    assert swapped.target == ("oedema", "nodule")


def test_measurements_are_stratified_by_quintile(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.lognormal(size=50)
    text = "bag,label\n" + "".join(f"b{i},{v}\n" for i, v in enumerate(y)) + "c,\n"
    t = table(tmp_path, text, task="regression", labels_required=False)
    assert t.values[:50] == tuple((float(v),) for v in y) and t.values[50] is None
    ranks = y.argsort().argsort()
    assert t.labels == (*(ranks // 10).tolist(), None)
    assert t.classes == ()


CLASSES = "bag,label\n"
TIMES = "bag,time,event\na,1,1\nb,"
TIME = r"line 3, bag 'b': the time \('time'\) is"
EVENT = r"bag 'b': the column 'event' is"
NODULE = "line 2, bag 'a': the finding 'nodule' is"
VALUE = "line 2, bag 'a': the value of 'label' is"
XY = ("nodule", "x")
PATIENT = {"covariates": ["patient"]}
AGE = {"target": "age", "covariates": ["age"]}
REFUSED = [
    ("binary", CLASSES + "a,1\nb,0\nc,2\n", {}, "'label' .*3 classes"),
    ("regression", CLASSES + "a,1\n", {"classes": ["a", "b"]}, "regression .*classes"),
    ("auto", CLASSES + "a,0.5\n", {}, r"line 2, bag 'a': .*'0\.5'.*--task regression"),
    ("auto", TIMES + "1,1\n", {}, "'label'.*--task survival"),
    ("auto", TIMES + "1,1\n", {"target": XY}, "nodule, x"),
    ("regression", "bag,age\na,1\n", AGE, "'age'"),
    ("auto", "bag,patient,label\na,p,1\n", PATIENT, "'patient' .*group"),
    ("regression", "bag,age\na,1\n", {"target": "agee"}, "'agee': .*'age'"),
    ("survival", "bag,time,censorship\na,2,x\n", {}, "'censorship' .*'x'"),
    *[("survival", f"{TIMES}{c},1\n", {}, f"{TIME} '{c}'") for c in ("0", "inf", "5 m")],
    ("survival", TIMES + "-3,1\n", {}, rf"labels\.csv, {TIME} '-3'"),
    ("survival", TIMES + "5,2\n", {}, f"{EVENT} '2'"),
    ("survival", TIMES + "5,ill\n", {}, f"{EVENT} 'ill'"),
    ("ordinal", CLASSES + "a,0\nb,1\nc,3\n", {}, "0, 1, 3, .*grade 2"),
    ("ordinal", CLASSES + "a,low\nb,high\n", {}, "'low'"),
    ("ordinal", CLASSES + "a,0\n", {"classes": ["1", "2"]}, "'0', .*1, 2"),
    ("multilabel", "bag\na\n", {}, "findings"),
    *[
        ("multilabel", f"bag,nodule,x\na,{c},\n", {"target": XY}, f"{NODULE} '{c}'")
        for c in ("2", "yes", "0.5")
    ],
    ("multilabel", "bag,x\na,1\n", {"target": "x"}, "'x', .*--task binary"),
    ("multilabel", "bag,a,b\nx,0,1\n", {"target": "a,b"}, r"--target '\[a, b\]'"),
    *[
        ("regression", f"bag;label\na;{c}\n", {}, f"{VALUE} '{c}'")
        for c in ("high", "inf", "nan", "1_000", "1,5")
    ],
    ("regression", CLASSES + "a,1\nb,\n", {}, "'label'"),
]


@pytest.mark.parametrize(("task", "text", "options", "words"), REFUSED)
def test_bad_targets(tmp_path, task, text, options, words):
    optional = {"labels_required": False} if task == "survival" else {}
    refused(TableError, words, table, tmp_path, text, task=task, **options, **optional)


def test_a_table_of_values_needs_them():
    with pytest.raises(TableError, match="0 targets"):
        LabelTable(bags=("a",), labels=(0,), classes=(), task="regression")


def test_splits_of_measurements_balance_quintiles():
    y = np.random.default_rng(1).permutation(50)
    t = made("regression", [(float(v),) for v in y], (y // 10).tolist())
    split = make_split(t)
    of = dict(zip(t.bags, t.labels, strict=True))
    assert np.bincount([of[b] for b in split.val]).tolist() == [2] * 5
    assert "quintiles of 'label'" in split.origin
    rotated = protocol_splits(replace(t, splits=("train",) * 40 + ("test",) * 10), splits=4)
    assert sorted(b for s in rotated for b in s.val) == list(t.bags[:40])
    few = made("regression", [(float(v),) for v in range(8)], [0, 0, 1, 2, 2, 3, 4, 4])
    assert len(make_split(few, validation=0.25).val) == 2  # quintiles are merged, not the share cut
    events = [1] * 10 + [0] * 40
    t = made("survival", [(1.0 + i, float(e)) for i, e in enumerate(events)], events)
    split = make_split(t)
    assert sum(int(b) < 10 for b in (n[1:] for n in split.val)) == 2 and len(split.val) == 10
    assert "stratified by event" in split.origin
    tested = ("train",) * 20 + ("test",) * 30
    with pytest.raises(TableError, match="30 bags"):
        protocol_splits(replace(t, splits=tested), splits=2)
    alone = replace(t, labels=(1,) + (0,) * 49, splits=("train",) * 40 + ("test",) * 10)
    refused(TableError, "1 bag with an event", protocol_splits, alone, splits=2)
    m = made("multilabel", [(0.0, 1.0)] * 10, [0] * 10)
    assert len(make_split(m).val) == 2
    assert len(protocol_splits(replace(m, splits=("train",) * 8 + ("test",) * 2), splits=4)) == 4


NAN = float("nan")
EVENTS = made("survival", [(1.0, 0.0), (2.0, 0.0), (3.0, 1.0)], [0, 0, 1])
VALUES = made("regression", [(1.5,), (1.5,), (2.0,)], [0, 0, 4])
FINDINGS = made("multilabel", [(1.0, 0.0), (0.0, NAN), (1.0, 1.0), (NAN, 1.0)], [0] * 4)
THREE = LabelTable(bags=tuple("abcdef"), labels=(0, 1, 2, 0, 1, 2), classes=("n", "m", "l"))
TWO, GRADES = (
    made(task, [(y,) for y in (1.0, 1.0, 0.0, 1.0)], [1, 1, 0, 1], classes=("none", "bleeding"))
    for task in ("binary", "ordinal")
)
TRAINED = [
    (THREE, "ttette", "2 bags .* l in test", "tttvee"),
    (replace(THREE, labels=(0, 0, 2, 0, 1, 2)), "tttvve", "1 bag .* m in val", "tttvtt"),
    (TWO, "ttvv", "2 training bags .*bleeding", "tvtv"),
    (GRADES, "ttvv", "2 training bags .*bleeding", "tvtt"),
    (EVENTS, "tte", "2 training bags", "ett"),
    (VALUES, "tte", r"\('label', by hand\): .*1\.5", "ett"),
    (FINDINGS, "ttee", "'y' .*1 bags", "tttv"),
    (FINDINGS, "ttte", "test .*'x'", "tttv"),
]


@pytest.mark.parametrize(("t", "parts", "words", "good"), TRAINED)
def test_the_training_part_can_train(t, parts, words, good):
    check_training_part(t, split_of(t, good))
    refused(TableError, words, check_training_part, t, split_of(t, parts))


def test_a_balanced_epoch_draws_each_class_equally():
    labels = [0] * 90 + [1] * 8 + [2] * 3
    drawn = balanced_epoch(labels, seed=3, epoch=0)
    counts = np.bincount(np.array(labels)[drawn])
    assert len(drawn) == 101 and sorted(counts.tolist()) == [33, 34, 34]
    assert balanced_epoch(labels, seed=3, epoch=0) == drawn
    assert balanced_epoch(labels, seed=3, epoch=1) != drawn
    share = np.bincount(
        np.concatenate([balanced_epoch(labels, seed=3, epoch=e) for e in range(60)])
    )
    assert share[98:].min() > 0.8 * share[98:].max()  # bags of a class are drawn alike
