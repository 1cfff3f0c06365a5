"""Patients as bags: from a table with one line for each slide, and a set of slides."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.refusals import refused

from probsa import Bag
from probsa.datasets import (
    BagList,
    FeatureMetadata,
    LabelTable,
    Metadata,
    MissingSlides,
    PatientBags,
    Split,
    find_leaks,
    patient_table,
    read_table,
)
from probsa.errors import BagError, InputError, TableError
from probsa.tasks import TargetOptions

TABLE = LabelTable(
    bags=("s3", "s1", "t1", "s2"),
    labels=(1, 1, 0, 1),
    groups=("p", "p", "q", "p"),
    classes=("0", "1"),
    folds=(1, 1, 0, 1),
)


def slide(name: str, n: int, *, seed: int) -> Bag:
    x = np.random.default_rng(seed).normal(size=(n, 3)).astype(np.float32)
    coords = np.stack([np.arange(n) * 10, np.zeros(n, int)], axis=1)
    return Bag.from_arrays(x, coords, name=name, stride=10, instance_labels=np.arange(n) % 2)


def slide_set(*missing: str) -> BagList:
    sizes = {"s1": 3, "s2": 2, "s3": 4, "t1": 5, "other": 2}
    return BagList(
        [slide(name, n, seed=k) for k, (name, n) in enumerate(sizes.items()) if name not in missing]
    )


def test_patients_are_bags():
    slides = slide_set()
    bags = PatientBags(slides, TABLE)
    assert (bags.names, bags.in_dim, len(bags)) == (("p", "q"), 3, 2)
    assert bags.slides_of("p") == ("s1", "s2", "s3") and bags.slide_counts("p") == (3, 3)
    assert (bags.size("p"), bags.size("q"), bags.without_slides) == (9, 5, ())
    p = bags.bag("p")
    assert (p.name, p.slides, p.y, p.stride) == ("p", ("s1", "s2", "s3"), None, 10)
    each = [slides.bag(name) for name in p.slides]
    assert torch.equal(p.x, torch.cat([b.x for b in each]))
    assert p.edges.shape[1] == sum(b.edges.shape[1] for b in each) == 2 + 1 + 3
    stored = bags.stored("p")
    assert np.array_equal(stored.features, p.x.numpy())
    centres = [stored.coords[p.slide.numpy() == k] for k in range(3)]
    assert all(np.array_equal(c.min(0), -c.max(0)) for c in centres)  # one frame for all slides
    assert np.array_equal(stored.instance_labels, p.instance_labels.numpy())
    assert bags.metadata("p") == Metadata(kind="slide")
    again = pickle.loads(pickle.dumps(bags))
    assert torch.equal(again.bag("p").x, p.x)
    with pytest.raises(InputError, match=r"'q' .*it is tested"):
        bags.sealed(["q"], why="it is tested").bag("q")
    refused(BagError, "'s1'", bags.bag, "s1")
    q = PatientBags(slides, TABLE).bag("q")
    alone = slides.bag("t1")
    for name in ("x", "edges", "weights", "coords", "instance_labels"):
        assert torch.equal(getattr(q, name), getattr(alone, name))
    assert (q.name, q.stride) == ("q", alone.stride)
    t = patient_table(TABLE)
    assert (t.bags, t.labels, t.groups, t.folds) == (("p", "q"), (1, 0), ("p", "q"), (1, 0))
    assert patient_table(t) == t
    refused(TableError, "'group'", patient_table, replace(TABLE, groups=None))


def test_training_refuses_missing_slides_and_prediction_uses_the_others():
    message = r"2 slides without a bag \('s2' of 'p', 't1' of 'q'\)\. 1 patient would have none "
    with pytest.raises(TableError, match=message + r"left \(q\)\. .*missing to leave_out"):
        PatientBags(slide_set("s2", "t1"), TABLE)
    bags = PatientBags(slide_set("s2", "t1"), TABLE, missing="leave_out")
    assert (bags.names, bags.without_slides) == (("p",), ("q",))
    assert bags.slide_counts("p") == (2, 3) and bags.bag("p").slides == ("s1", "s3")
    assert bags.notes["p"] == (MissingSlides(used=2, missing={"s2": "no bag"}),)
    assert bags.notes["q"] == (MissingSlides(used=0, missing={"t1": "no bag"}),)
    with pytest.raises(BagError, match="2 patients"):
        PatientBags(slide_set("s1", "s2", "s3", "t1"), TABLE, missing="leave_out")
    with pytest.raises(TableError, match="'group'"):
        PatientBags(slide_set(), replace(TABLE, groups=None))
    empty = replace(slide("s2", 2, seed=9), x=torch.zeros(0, 3), edges=torch.zeros(2, 0).long())
    others = [slide(name, 2, seed=k) for k, name in enumerate(("s1", "s3", "t1"))]
    bags = PatientBags(BagList([empty, *others]), TABLE)
    assert bags.slides_of("p") == ("s1", "s3")
    assert bags.notes["p"] == (MissingSlides(used=2, missing={"s2": "no instances"}),)


def test_the_features_of_every_slide_are_described(monkeypatch):
    stated = {"s1": 0.5, "s2": 0.25, "s3": 0.5, "t1": 1.0}
    monkeypatch.setattr(
        BagList, "metadata", lambda _, name: Metadata(mpp=stated[name], unreadable=1, encoder="e")
    )
    bags = PatientBags(slide_set(), TABLE)
    assert bags.metadata("p") == Metadata(mpp=None, unreadable=3, encoder="e")
    assert FeatureMetadata.of(bags, ["p"]).mpps == (0.25, 0.5)


def test_copies_are_found_slide_by_slide():
    copied = replace(slide("t1", 40, seed=7), name="t1")
    slides = BagList(
        [slide("s1", 90, seed=1), slide("s2", 80, seed=2), replace(copied, name="s3"), copied]
    )
    t = replace(patient_table(TABLE), folds=None, splits=("train", "test"))
    parts = Split(train=("p",), val=(), test=("q",), origin="by hand")
    (leak,) = find_leaks(PatientBags(slides, TABLE), t, parts)
    assert (leak.kind, leak.bags, leak.parts) == ("copy", ("s3", "t1"), ("train", "test"))
    assert leak.labels_differ


def test_quintiles_are_those_of_patients(tmp_path):
    path = tmp_path / "labels.csv"
    lines = [f"s{i},p{i},{i}" for i in range(5)] + [f"t{i},p4,4" for i in range(10)]
    path.write_text("bag,group,label\n" + "\n".join(lines))
    t = read_table(path, target=TargetOptions(task="regression"))
    assert t.labels[:5] != (0, 1, 2, 3, 4)
    assert patient_table(t).labels == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        (
            "auto",
            "a,p,1\nb,q,0\nc,p,0",
            r"'label': line 2, bag 'a' has '1', line 4, bag 'c' has '0'",
        ),
        ("auto", "a,p,1\nb,q,0\nc,p,", "line 4, bag 'c' has no label"),
        ("regression", "a,p,1.5\nb,p,2", r"line 2, bag 'a' has 1\.5, line 3, bag 'b' has 2"),
        ("survival", "a,p,3,1\nb,p,3,0", r"'time' and 'event': .* has 3, 1, .* has 3, 0"),
        ("multilabel", "a,p,1,\nb,p,1,0", "has 1, unknown, line 3, bag 'b' has 1, 0"),
        ("fold", "a,p,1,0\nb,p,1,2", "disagree in fold: line 2, bag 'a' has 0, line 3, .* has 2"),
        ("split", "a,p,1,train\nb,p,1,", "disagree in split: .* has train, .* has unused"),
    ],
)
def test_slides_that_disagree(tmp_path, task, rows, message):
    columns = {
        "survival": "time,event",
        "multilabel": "x,y",
        "fold": "label,fold",
        "split": "label,split",
    }
    path = tmp_path / "labels.csv"
    path.write_text(f"bag,group,{columns.get(task, 'label')}\n{rows}\n")
    target = TargetOptions(
        task="auto" if task in ("fold", "split") else task,
        target=("x", "y") if task == "multilabel" else None,
    )
    t = read_table(path, target=target, labels_required=False)
    refused(TableError, rf"the slides of patient 'p' .*{message}", patient_table, t)


def test_findings_that_agree_may_be_unknown(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("bag,group,x,y\na,p,1,\nb,p,1.0,\n")
    t = read_table(path, target=TargetOptions(task="multilabel", target=("x", "y")))
    assert patient_table(t).bags == ("p",)
