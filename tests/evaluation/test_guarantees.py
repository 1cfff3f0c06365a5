"""The section on guarantees: against the files themselves, and what it refuses."""

import io
import json
import re
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from support.made_guarantees import joined, write_cohort

from probsa.cli.entry import main
from probsa.core import TextTable
from probsa.errors import InputError, UnmetGuarantee
from probsa.evaluation import GuaranteeOptions, evaluate, read_predictions, write_sets
from probsa.evaluation.unmet_guarantees import check_groups
from probsa.statistics import coverage_band


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    """A folder of predictions and its table; tests do not change them."""
    return write_cohort(tmp_path_factory.mktemp("cohort") / "p", seed=1)


def section(folder, table, *, part="auto", bootstrap=0, **options):
    options.setdefault("coverage", None if {"max_missed", "max_error"} & set(options) else 0.9)
    report = evaluate(
        folder,
        labels=table,
        part=part,
        guarantees=GuaranteeOptions(**options),
        bootstrap=bootstrap,
    )
    (found,) = [s for s in report.sections if s.key == "guarantees"]
    return found


def rows_of(folder, table, part):
    """(y, p, group) of a part, by group, read independently of the tested code."""
    group = {row["bag"]: row["group"] for row in TextTable.read(table).rows}
    by_group = defaultdict(list)
    for row in TextTable.read(folder / "predictions.csv").rows:
        if row["part"] == part:
            by_group[group[row["bag"]]].append((int(row["label"]), float(row["p_1"]), row["bag"]))
    return by_group


def text(part):
    console = Console(width=200, file=io.StringIO())
    part.render(console)
    return console.file.getvalue()


def test_without_a_request_there_is_no_section(cohort):
    folder, table = cohort
    report = evaluate(folder, labels=table, bootstrap=0)
    assert "guarantees" not in report.to_dict()
    with_one = evaluate(
        folder, labels=table, guarantees=GuaranteeOptions(coverage=0.9), bootstrap=0
    )
    assert "guarantees" in with_one.to_dict()


@pytest.mark.parametrize("per_class", [False, True])
def test_sets_are_those_of_the_definition(cohort, per_class):
    folder, table = cohort
    found = section(folder, table, coverage=0.8, per_class=per_class).sets
    val, test = rows_of(folder, table, "val"), rows_of(folder, table, "test")
    threshold = {}
    for c in (0, 1):
        losses = [
            [1 - (p if y else 1 - p) for y, p, _ in bags if not per_class or y == c]
            for bags in val.values()
        ]
        losses = [np.array(s) for s in losses if s]
        k = len(losses)
        enough = [
            t
            for t in sorted(np.concatenate(losses))
            if (sum((s > t).mean() for s in losses) + 1) / (k + 1) <= 0.2 + 1e-12
        ]
        threshold[c] = enough[0]
        assert found.groups[str(c) if per_class else "all"] == k
    covered, sizes = [], []
    for bags in test.values():
        inside = [[1 - (p if c else 1 - p) <= threshold[c] for c in (0, 1)] for _, p, _ in bags]
        covered.append(np.mean([i[y] for i, (y, _, _) in zip(inside, bags, strict=True)]))
        sizes.append(np.mean([sum(i) for i in inside]))
    assert found.thresholds == pytest.approx({"0": threshold[0], "1": threshold[1]})
    assert found.metrics["coverage"].value == pytest.approx(np.mean(covered))
    assert found.metrics["set_size"].value == pytest.approx(np.mean(sizes))
    shares = [found.metrics[f"{k}_sets"].value for k in ("empty", "single", "larger")]
    assert sum(shares) == pytest.approx(1)


def test_intervals_resample_groups(cohort):
    folder, table = cohort
    found = section(folder, table, coverage=0.8, bootstrap=400).sets.metrics["coverage"]
    assert found.low < found.value < found.high
    per_group = [
        np.mean([max(p, 1 - p) if y == (p >= 0.5) else 0 for y, p, _ in bags])
        for bags in rows_of(folder, table, "test").values()
    ]
    assert found.high - found.low == pytest.approx(4 * np.std(per_group) / 40**0.5, rel=0.6)


def test_aps_draws_the_same_random_part_for_the_same_bag(cohort):
    folder, table = cohort
    once = section(folder, table, coverage=0.9, score="aps").sets
    again = section(folder, table, coverage=0.9, score="aps").sets
    assert once == again
    assert once.thresholds != section(folder, table, coverage=0.9, score="lac").sets.thresholds


def test_missed_instances_are_those_of_the_definition(cohort):
    folder, table = cohort
    found = section(folder, table, max_missed=0.2).missed
    predictions = read_predictions(folder)

    def positives(bags):
        read = [predictions.instances(bag) for _, _, bag in bags]
        return [
            p.attention_mean[p.instance_labels > 0].astype(float)
            for p in read
            if (p.instance_labels > 0).any()
        ]

    def risk(groups, t):
        return [np.mean([(s < t).mean() for s in bags]) for bags in groups]

    val = [s for b in rows_of(folder, table, "val").values() if (s := positives(b))]
    test = [s for b in rows_of(folder, table, "test").values() if (s := positives(b))]
    candidates = np.concatenate([np.concatenate(bags) for bags in val])
    fitting = [t for t in candidates if (sum(risk(val, t)) + 1) / (len(val) + 1) <= 0.2 + 1e-12]
    assert (found.groups, found.bags) == (len(val), sum(map(len, val)))
    assert found.threshold == pytest.approx(max(fitting))
    assert found.metrics["missed"].value == pytest.approx(np.mean(risk(test, found.threshold)))
    flagged = [
        np.mean([(predictions.instances(bag).attention_mean >= found.threshold).mean()])
        for bags in rows_of(folder, table, "test").values()
        for _, _, bag in bags
    ]
    low, high = (found.metrics[f"flagged_{k}_bags"].value for k in ("negative", "positive"))
    assert low < np.mean(flagged) < high


def test_accepted_calls_are_those_outside_the_undecided_range(tmp_path):
    folder, table = write_cohort(tmp_path / "p", seed=3, skill=2.0)
    found = section(folder, table, max_error=0.2).accepted
    low, high = found.undecided
    assert low < 0.4 < high  # the threshold of the calls
    groups = rows_of(folder, table, "test").values()
    accepted = [[not low < p < high for _, p, _ in bags] for bags in groups]
    wrong = [[(p >= 0.4) != y for y, p, _ in bags] for bags in groups]
    both = [np.mean(np.array(a) & w) for a, w in zip(accepted, wrong, strict=True)]
    share = [np.mean(a) for a in accepted]
    assert found.metrics["accepted"].value == pytest.approx(np.mean(share))
    assert found.metrics["error_of_accepted"].value == pytest.approx(np.sum(both) / np.sum(share))
    assert found.metrics["error_of_all"].value == pytest.approx(
        np.mean([np.mean(w) for w in wrong])
    )
    assert found.rule.error <= 0.2 and 0 < found.metrics["accepted"].value < 1


def test_what_cannot_be_certified_is_said(tmp_path):
    folder, table = write_cohort(tmp_path / "p", seed=4, skill=0.0)
    found = section(folder, table, max_error=0.2)
    assert found.accepted.rule.threshold is None
    assert found.accepted.metrics["accepted"].value == 0
    shown, rule = text(found), found.accepted.rule
    assert "cannot be certified with 40 calibration groups" in shown
    assert (
        f"the strictest threshold that was tried accepts {rule.accepted:.1%} of their calls, of "
        f"which {rule.error:.1%} are wrong (p-value {rule.p_value:.3g})"
    ) in shown
    everything = replace(found.accepted, rule=replace(rule, accepted=1.0))
    assert "tried accepts all of their calls, of which" in everything.lines()[1]
    furthest = found.alarm.columns[int(np.argmax(found.alarm.test.distances))]
    named = furthest.replace("p of class", "probability of class")
    assert f"({named}), p-value {found.alarm.test.p_value:.3f}" in shown
    assert found.to_dict()["accepted"]["certified"] is False


def test_everything_is_accepted_where_nothing_is_wrong(tmp_path):
    folder, table = write_cohort(tmp_path / "p", skill=30)
    found = section(folder, table, max_error=0.2)
    assert found.accepted.metrics["accepted"].value == 1
    assert "every call is accepted" in text(found)


def test_the_report_says_what_is_promised(cohort):
    folder, table = cohort
    found = section(folder, table, coverage=0.9, max_missed=0.2, max_error=0.25)
    shown = text(found)
    low, high = coverage_band(40, alpha=0.1)
    assert (
        f"40 calibration groups: the realised coverage is between {low:.3f} and {high:.3f}" in shown
    )
    assert "for 9 of 10 calibration sets of this size" in shown
    assert "chosen on the calibration bags" in shown
    assert "no groups are known" not in shown
    json.dumps(found.to_dict(), allow_nan=False)
    no_groups = section(folder, None, coverage=0.9)
    assert "no groups are known" in no_groups.caution


def test_the_alarm_rings_for_shifted_bags_only(cohort, tmp_path):
    assert not section(*cohort).alarm.rings
    moved, moved_table = write_cohort(tmp_path / "q", shift=3.0)
    found = section(moved, moved_table)
    assert found.alarm.rings and "ALARM" in text(found)


def test_the_alarm_uses_a_column_of_distances_from_training(tmp_path):
    folder, table = write_cohort(tmp_path / "p")
    path = folder / "predictions.csv"
    header, *lines = path.read_text().splitlines()
    far = [i / 1000 + 5 * (",test," in line) for i, line in enumerate(lines)]
    lines = [f"{line},0.5,{value:g}" for line, value in zip(lines, far, strict=True)]
    path.write_text("\n".join([f"{header},ood,ood_distance", *lines]) + "\n")
    found = section(folder, table).alarm
    assert found.rings and found.test.distances[-1] == pytest.approx(1)
    assert found.columns[-1] == "distance from training"


# Calibration bags of another folder


def test_other_bags_can_calibrate(cohort, tmp_path):
    folder, table = cohort
    other, other_table = write_cohort(tmp_path / "q", parts=(("val", 30), ("new", 50)), seed=5)
    both = joined(tmp_path, table, other_table)
    found = section(folder, both, calibration=other)
    assert (found.groups, found.caution) == (50, None)
    assert section(folder, table).groups == 40
    stored = section(folder, None, calibration=other)
    assert stored.groups == stored.bags > 50  # without groups, each bag is its own


def test_groups_on_both_sides_are_refused(cohort, tmp_path):
    folder, table = cohort
    leaked = tmp_path / "leaked.csv"
    leaked.write_text(table.read_text().replace("p-val3\n", "p-test5\n"))
    with pytest.raises(InputError, match=r"1 group \('p-test5'\) are among both|1 group"):
        section(folder, leaked)
    same = tmp_path / "same.csv"
    rows = [line.rsplit(",", 1)[0] for line in table.read_text().splitlines()]
    same.write_text("\n".join([rows[0] + ",group", *(f"{r},one" for r in rows[1:])]) + "\n")
    with pytest.raises(InputError, match="'one'"):
        section(folder, same)


def test_bags_on_both_sides_are_refused(cohort):
    folder, table = cohort
    with pytest.raises(InputError, match=r"bags \('p-test0-0', .* and \d+ more\) are among both"):
        section(folder, table, calibration=folder)


def test_other_models_and_classes_are_refused(cohort, tmp_path):
    folder, table = cohort
    other, other_table = write_cohort(tmp_path / "q", epoch=4)
    both = joined(tmp_path, table, other_table)
    with pytest.raises(InputError, match="different models: epoch is 3 and 4"):
        section(folder, both, calibration=other)
    named, named_table = write_cohort(tmp_path / "r", classes=("a", "b"))
    with pytest.raises(InputError, match="has a, b: calibrate with predictions of the same"):
        section(folder, joined(tmp_path, table, named_table), calibration=named)


def test_groups_of_only_one_side_are_refused(cohort, tmp_path):
    folder, table = cohort
    other, _ = write_cohort(tmp_path / "q", seed=5)
    with pytest.raises(InputError, match="list the calibration bags in the same table"):
        section(folder, table, calibration=other)


def test_too_few_calibration_bags_are_refused_with_the_number_needed(tmp_path):
    folder, table = write_cohort(tmp_path / "p", parts=(("val", 15), ("test", 20)))
    few = "bags of at least 19 groups (patients), but there are 15: add calibration bags, or give"
    for options, needed in (
        ({"coverage": 0.95}, f"--coverage 0.95 needs calibration {few} --coverage 0.937"),
        ({"max_error": 0.1}, "--max-error 0.1 needs at least 22 calibration groups"),
    ):
        with pytest.raises(UnmetGuarantee, match=re.escape(needed)):
            section(folder, table, **options)
    assert section(folder, table, coverage=0.937).sets.groups == {"all": 15}
    with pytest.raises(UnmetGuarantee, match=r"^--max-missed 0\.05 .*, or give --max-missed 0\."):
        section(folder, table, max_missed=0.05)
    with pytest.raises(UnmetGuarantee, match=r"^--coverage 0\.95 .* bags of class 0 of at least"):
        section(folder, table, coverage=0.95, per_class=True)
    none, none_table = write_cohort(tmp_path / "n", parts=(("test", 20),))
    with pytest.raises(InputError, match="no labelled validation bags"):
        section(none, none_table)
    with pytest.raises(InputError, match="no labelled validation bags besides those"):
        section(folder, table, part="val")


def test_a_request_that_cannot_be_met_does_not_keep_others_from_the_report(tmp_path, capsys):
    folder, table = write_cohort(tmp_path / "p", parts=(("val", 15), ("test", 20)))
    found = section(folder, table, coverage=0.8, max_error=0.1)
    assert found.sets.groups == {"all": 15} and found.accepted is None
    assert list(found.unmet) == ["--max-error"]
    reason = found.unmet["--max-error"]
    assert text(found).rstrip().endswith(f"not guaranteed: {reason}")
    given = ["evaluate", str(folder), "--labels", str(table), "--bootstrap", "0"]
    status = main([*given, "--coverage", "0.8", "--max-error", "0.1", "--json"])
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert status == 2 and shown.err == f"probsa: error: {reason}\n"
    assert report["metrics"]["auroc"]["value"] is not None
    assert report["guarantees"]["unmet"] == {"--max-error": reason}
    assert report["guarantees"]["sets"]["coverage"] == 0.8
    assert main([*given, "--coverage", "0.8"]) == 0


def test_all_unmet_requests_are_listed_at_once(tmp_path):
    folder, table = write_cohort(tmp_path / "p", parts=(("val", 15), ("test", 20)))
    options = GuaranteeOptions(coverage=0.95, max_error=0.1)
    both = r"^2 guarantees cannot be given: --coverage 0\.95 .*; --max-error 0\.1 "
    with pytest.raises(UnmetGuarantee, match=both):
        evaluate(folder, labels=table, guarantees=options, bootstrap=0)
    new, new_table = write_cohort(tmp_path / "n", parts=(("val", 15), ("new", 20)))
    with pytest.raises(UnmetGuarantee, match=both):
        write_sets(new, options, out=tmp_path / "sets.csv", labels=new_table)
    one = GuaranteeOptions(coverage=0.8, max_error=0.1)
    with pytest.raises(UnmetGuarantee, match=r"^--max-error 0\.1 needs"):
        write_sets(new, one, out=tmp_path / "sets.csv", labels=new_table)
    assert not (tmp_path / "sets.csv").exists()


@pytest.mark.parametrize("groups", [1, 2, 6, 8, 15, 20, 999])
def test_the_suggested_level_is_possible(groups):
    for flag, level in (("--coverage", 0.9999), ("--max-missed", 0.0001)):
        with pytest.raises(UnmetGuarantee) as error:
            check_groups(groups, flag=flag, level=level)
        suggested = float(str(error.value).rsplit(" ", 1)[1])
        check_groups(groups, flag=flag, level=suggested)
        stricter = suggested + (0.002 if flag == "--coverage" else -0.002)
        if 0 < stricter < 1:
            with pytest.raises(UnmetGuarantee):
                check_groups(groups, flag=flag, level=stricter)


def test_levels_are_checked():
    for options in ({"coverage": 1.0}, {"max_missed": 0.0}, {"max_error": 90.0}):
        with pytest.raises(InputError, match="expected a number between 0 and 1"):
            GuaranteeOptions(**options)
    with pytest.raises(InputError, match="no guarantee is requested"):
        GuaranteeOptions()


def test_missed_instances_need_instance_labels(tmp_path):
    folder, table = write_cohort(tmp_path / "p", positives=False)
    with pytest.raises(InputError, match="needs calibration bags with labels of positive"):
        section(folder, table, max_missed=0.2)
