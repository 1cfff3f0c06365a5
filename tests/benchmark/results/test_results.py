"""Scores are read from run folders alone; incomplete or damaged runs are left out and reported."""

import json
import shutil

import numpy as np
import pytest
from support.made_experiments import write_folds, write_run

from probsa.benchmark import means_of, metric_frame, read_results
from probsa.benchmark.results.results import instances_of, read_cells, validation_of
from probsa.benchmark.results.sampling import values_by_split
from probsa.errors import BagError, InputError

FOLDS = [["a", "b", "c", "d"], ["e", "f", "g", "h"], ["i", "j", "k", "l"]]
Y = dict(zip("abcdefghijkl", [0, 0, 1, 1] * 3, strict=True))
# by fold: all pairs right; 3 of 4 pairs right; 2 of 4
P_BY_FOLD = [[0.1, 0.2, 0.7, 0.9], [0.1, 0.6, 0.4, 0.8], [0.3, 0.9, 0.2, 0.95]]
P = dict(zip("abcdefghijkl", [p for fold in P_BY_FOLD for p in fold], strict=True))


def test_folds_are_pooled_into_one_replicate_a_seed(tmp_path):
    groups = {b: f"patient {b}" for b in Y}
    write_folds(tmp_path, Y, FOLDS, P, groups=groups, threshold=0.45)
    write_folds(tmp_path, Y, FOLDS, {b: 1 - v for b, v in P.items()}, seed=3)
    (scores,) = read_results(tmp_path).scores
    assert (scores.data, scores.method.name, scores.folds) == ("toy", "abmil", True)
    assert scores.bags == tuple("abcdefghijkl")
    assert scores.positive.astype(int).tolist() == [0, 0, 1, 1] * 3
    assert scores.groups.tolist()[:2] == ["patient a", "patient b"]
    np.testing.assert_allclose(scores.p, [list(P.values()), [1 - v for v in P.values()]], rtol=1e-6)
    # at the threshold of the run that gave it: 0.45 in seed 0, 0.5 in seed 3
    assert scores.calls[0].tolist() == [v >= 0.45 for v in P.values()]
    assert scores.calls[1].tolist() == [1 - v >= 0.5 for v in P.values()]
    assert scores.split.tolist() == [[0] * 4 + [1] * 4 + [2] * 4] * 2
    assert scores.seed.tolist() == [0, 3]
    names = [[part.path.name for part in parts] for parts in scores.replicates]
    assert names == [[f"split{k}-seed{s}" for k in range(3)] for s in (0, 3)]


def test_a_fixed_test_part_gives_a_replicate_a_split_and_seed(tmp_path):
    y = {"a": 0, "b": 1, "c": 1, "v": 0, "w": 1}
    for split, seed, p in [(0, 0, 0.9), (0, 1, 0.8), (1, 0, 0.3)]:
        write_run(
            tmp_path,
            split=split,
            seed=seed,
            folds=False,
            y=y,
            test={"c": 0.4, "b": p, "a": 0.35},
            val={"v": 0.1} if split else {"w": 0.2},
        )
    (scores,) = read_results(tmp_path).scores
    assert scores.bags == ("a", "b", "c") and not scores.folds
    assert scores.split.tolist() == [[0] * 3, [0] * 3, [1] * 3]
    assert scores.seed.tolist() == [0, 1, 0]
    np.testing.assert_allclose(scores.p[:, 1], [0.9, 0.8, 0.3], rtol=1e-6)
    # without patients, each bag is a group
    assert scores.groups.tolist() == ["a", "b", "c"]
    # split 0: 1 and 1; split 1: one of two pairs
    assert values_by_split(scores)["auroc"] == {0: 1.0, 1: 0.5}
    frame = metric_frame(scores)
    assert list(frame) == ["data", "method", "kl_weight", "split", "seed", "metric", "value"]
    of_run = frame[(frame["split"] == 1) & (frame["metric"] == "auroc")]
    assert of_run[["data", "method", "seed", "value"]].values.tolist() == [["toy", "abmil", 0, 0.5]]
    result = means_of(scores)["auroc"]
    assert (result.mean, result.splits) == (0.75, 2)
    assert result.sd == pytest.approx(0.5 / np.sqrt(2))


def test_means_are_over_splits_of_means_over_seeds(tmp_path):
    write_folds(tmp_path, Y, FOLDS, P)
    write_folds(tmp_path, Y, FOLDS, {b: 1 - v for b, v in P.items()}, seed=1)
    (scores,) = read_results(tmp_path).scores
    # seed 0: 1, 3/4, 3/4 by hand; seed 1 is its complement
    assert values_by_split(scores)["auroc"] == {0: 0.5, 1: 0.5, 2: 0.5}
    only = read_results(_alone(tmp_path, seed=1)).scores[0]
    assert values_by_split(only)["auroc"] == {0: 1.0, 1: 0.75, 2: 0.5}
    result = means_of(only)["auroc"]
    assert result.mean == pytest.approx(0.75)
    assert result.sd == pytest.approx(0.25)
    # at 0.5: fold 0 right; fold 1: f and h called, h right; fold 2: j and l called, l right
    assert values_by_split(only)["f1"] == {0: 1.0, 1: 0.5, 2: 0.5}


def _alone(out, *, seed):
    for path in out.rglob(f"split*-seed{seed}"):
        shutil.rmtree(path)
    return out


def test_a_fold_of_one_class_has_no_auroc_and_no_say(tmp_path):
    y = {**Y, "i": 0, "j": 0, "k": 0, "l": 0}
    write_folds(tmp_path, y, FOLDS, P)
    (scores,) = read_results(tmp_path).scores
    assert set(values_by_split(scores)["auroc"]) == {0, 1}
    assert set(values_by_split(scores)["f1"]) == {0, 1}
    assert means_of(scores)["auroc"].splits == 2


def test_no_call_at_all_is_an_f1_of_0(tmp_path):
    write_folds(tmp_path, Y, FOLDS, P, threshold=1.0)
    (scores,) = read_results(tmp_path).scores
    assert values_by_split(scores)["f1"] == {0: 0.0, 1: 0.0, 2: 0.0}


def test_a_seed_without_all_folds_is_left_out_and_named(tmp_path):
    write_folds(tmp_path, Y, FOLDS, P)
    paths = write_folds(tmp_path, Y, FOLDS, P, seed=1)
    shutil.rmtree(paths[2] / "predictions")
    result = read_results(tmp_path)
    assert result.scores[0].seed.tolist() == [0]
    assert result.unfinished == (paths[2],)
    (incomplete,) = result.incomplete
    assert (incomplete.data, incomplete.method, incomplete.seed) == ("toy", "abmil", 1)
    assert (incomplete.untested, incomplete.splits) == (4, (2,))
    assert len(result.left_out()) == 2


def test_cells_that_wait_have_no_say(tmp_path):
    write_folds(tmp_path, Y, FOLDS, P)
    waiting = tmp_path / "cells" / "toy" / "dsmil" / "split0-seed0"
    waiting.mkdir(parents=True)
    (waiting / "run.yaml").write_text("model: dsmil\n")
    runs = read_cells(tmp_path)
    assert len(runs.done) == 3 and runs.unfinished == (waiting,)
    assert [s.method.label for s in read_results(tmp_path).scores] == ["abmil"]


TABLE = "predictions/predictions.csv"
COLUMNS = "bag,part,label,prediction,p_1,sd_1"
FIRST, *OTHERS = ("e,test,0,0,0.5,0", "f,test,0,0,0.5,0", "g,test,1,0,1,0", "h,test,1,0,1,0")
OF_THREE = "bag,part,label,prediction,p_0,p_1,p_2,sd_0,sd_1,sd_2\ne,test,0,0,1,0,0,0,0,0\n"


def lines(*rows: str) -> str:
    return "\n".join([*rows, ""])


@pytest.mark.parametrize(
    ("file", "content", "fact"),
    [
        ("cell.json", "{", "cell.json"),
        ("cell.json", "[]", "cell.json"),
        ("cell.json", "{}", "data"),
        ("split.json", "{}", "train"),
        ("threshold.json", '{"threshold": "x"}', "'x'"),
        ("threshold.json", None, "threshold.json"),
        (TABLE, "bag,p_1\n", "column"),
        (TABLE, lines(COLUMNS, FIRST), "3 test bags"),
        (TABLE, lines(COLUMNS, FIRST, "f,test,,0,0.5,0", *OTHERS[1:]), "'f'"),
        (TABLE, OF_THREE, "0, 1, 2"),
        (TABLE, lines(COLUMNS, "e,test,1,0,0.5,0", *OTHERS), "'e'"),
    ],
)
def test_a_damaged_folder_is_named_and_costs_its_replicate_alone(tmp_path, file, content, fact):
    write_folds(tmp_path, Y, FOLDS, P)
    broken = write_folds(tmp_path, Y, FOLDS, P, seed=1)[1]
    if content is None:
        (broken / file).unlink()
    else:
        (broken / file).write_text(content)
    result = read_results(tmp_path)
    assert result.scores[0].seed.tolist() == [0]
    ((path, reason),) = result.skipped
    assert path == broken and fact in reason
    assert any("split1-seed1" in line and reason in line for line in result.left_out())


def test_runs_that_test_other_bags_do_not_mix(tmp_path):
    y = {"a": 0, "b": 1, "c": 1}
    for split in (1, 2):
        write_run(tmp_path, split=split, folds=False, y=y, test={"a": 0.1, "b": 0.9})
    write_run(tmp_path, split=0, folds=False, y=y, test={"a": 0.1, "c": 0.9})
    result = read_results(tmp_path)
    assert result.scores[0].split[:, 0].tolist() == [1, 2]
    assert [path.name for path, _ in result.skipped] == ["split0-seed0"]


def test_a_bag_that_two_folds_test_makes_no_replicate(tmp_path):
    folds = [["a", "b", "c", "d"], ["e", "f", "g", "h", "a"], ["i", "j", "k", "l"]]
    write_folds(tmp_path, Y, folds, P)
    write_folds(tmp_path, Y, FOLDS, P, model="dsmil")
    result = read_results(tmp_path)
    (incomplete,) = result.incomplete
    assert (incomplete.method, incomplete.untested, incomplete.splits) == ("abmil", 0, ())
    assert [s.method.name for s in result.scores] == ["dsmil"]


def test_without_a_threshold_calls_are_at_one_half(tmp_path):
    write_folds(tmp_path, Y, FOLDS, P, threshold=None)
    (scores,) = read_results(tmp_path).scores
    assert scores.calls[0].tolist() == [v >= 0.5 for v in P.values()]


def test_a_probability_at_the_threshold_is_a_call(tmp_path):
    write_folds(tmp_path, Y, FOLDS, P, threshold=0.7)
    (scores,) = read_results(tmp_path).scores
    assert P["c"] == 0.7 and scores.calls[0, 2]
    assert scores.calls.sum() == sum(v >= 0.7 for v in P.values())


def test_methods_and_data_sets_come_in_the_papers_order(tmp_path):
    for data in ("b", "a"):
        for model, kl in [
            ("tabmil", None),
            ("abmil", None),
            ("abmil-probsa-diag", "cyclical"),
            ("abmil-probsa-diag", 0.1),
            ("abmil-probsa-dirac", 1),
        ]:
            write_folds(tmp_path, Y, FOLDS, P, data=data, model=model, kl_weight=kl)
    names = [(s.data, s.method.name) for s in read_results(tmp_path).scores]
    assert names[:5] == [
        ("a", "abmil-probsa-dirac λ=1"),
        ("a", "abmil-probsa-diag λ=0.1"),
        ("a", "abmil-probsa-diag λ=cyclical"),
        ("a", "abmil"),
        ("a", "tabmil"),
    ]
    assert [d for d, _ in names] == ["a"] * 5 + ["b"] * 5


def test_per_instance_outputs_are_read_replicate_by_replicate(tmp_path):
    write_folds(tmp_path, Y, FOLDS, P, instances={"c": [0, 1, 1, 0]})
    paths = write_folds(tmp_path, Y, FOLDS, {b: 1 - v for b, v in P.items()}, seed=1, instances={})
    (scores,) = read_results(tmp_path).scores
    reader = instances_of(scores)
    first = next(reader)
    assert [p.name for p in first] == list("abcdefghijkl")
    assert first[2].instance_labels.tolist() == [0, 1, 1, 0]
    assert first[2].probability[0] == np.float32(0.7)
    # the second replicate is read only now
    (paths[0] / "predictions" / "instances" / "a.h5").unlink()
    with pytest.raises(BagError, match=r"a\.h5"):
        next(reader)
    by_split = next(validation_of(scores))
    result = {k: [p.name for p in of] for k, of in by_split.items()}
    assert result == {0: FOLDS[1], 1: FOLDS[2], 2: FOLDS[0]}


@pytest.mark.parametrize("finished", [0, 2])
def test_nothing_to_tabulate_says_what_there_is(tmp_path, finished):
    if finished:
        write_folds(tmp_path, Y, FOLDS, P)
        shutil.rmtree(next(tmp_path.rglob("split1-seed0")))
    with pytest.raises(InputError, match=f"{finished} finished"):
        read_results(tmp_path)


def test_the_cells_file_keeps_what_it_says(tmp_path):
    path = write_folds(tmp_path, Y, FOLDS, P, model="abmil-probsa-diag", kl_weight=1)[0]
    cell = json.loads((path / "cell.json").read_text())
    run = next(r for r in read_cells(tmp_path).done if r.path == path)
    assert (run.method.kl_weight, run.method.slug) == (1.0, path.parent.name)
    assert (run.split, run.seed, run.folds) == (cell["split"], cell["seed"], cell["folds"])
