"""Grids are read as their files say: methods, cells and runs; invalid ones are rejected."""

from collections import Counter

import numpy as np
import pytest
from support.grids import write_grid
from support.made_studies import write_processed, write_splits
from support.paths import ROOT
from support.refusals import refused
from support.stored import write_folder

from probsa.benchmark import check_grid, read_grid, run_grid
from probsa.benchmark.grid.checks import store_checked
from probsa.benchmark.grid.entries import kl_weights, methods_of
from probsa.errors import GraphError, InputError, TableError, UnknownName
from probsa.evaluation import read_predictions
from probsa.models import build, names

RECIPES = ROOT / "recipes"


@pytest.fixture(scope="module", autouse=True)
def _each_model_is_built_once():
    """A run is checked by building its model, which the many cells of a grid do again and again."""
    built = {}

    def build_once(name, **arguments):
        key = name, repr(sorted(arguments.items()))
        if key not in built:
            built[key] = build(name, **arguments)
        return built[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probsa.training.runfile.build", build_once)
        yield


@pytest.fixture
def folder(tmp_path):
    write_folder(tmp_path / "toy")
    return tmp_path / "toy"


def configs(grid, out):
    """Return the run of each cell by (method, split, seed)."""
    return {(c.method.name, c.split, c.seed): c.config for c in grid.cells(out)}


def test_the_smallest_grid(folder, tmp_path):
    path = write_grid(folder, kl_weight=[0, 0.1, "cyclical"], seeds=5, epochs=100)
    grid = read_grid(path)
    cells = grid.cells(tmp_path / "out")
    # three methods (λ = 0 is abmil, which is listed), three folds, five seeds
    assert len(cells) == 3 * 3 * 5 == len({c.name for c in cells})
    assert Counter(c.method.name for c in cells) == {
        "abmil": 15,
        "abmil-probsa-diag λ=0.1": 15,
        "abmil-probsa-diag λ=cyclical": 15,
    }
    # whole replicates come first: all methods and folds of one seed
    assert [c.seed for c in cells] == [s for s in range(5) for _ in range(9)]
    assert cells[1].name == "toy/abmil-probsa-diag_kl-0.1/split0-seed0"
    assert grid.name == "grid" and [d.name for d in grid.data] == ["toy"]


def test_the_run_of_a_cell(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = {"features": "toy/features", "labels": "toy/labels.csv", "standardize": True}
    path = write_grid(folder, data=data, kl_weight=0.5, seeds=[3], epochs=7)
    runs = configs(read_grid(path), tmp_path / "out")
    plain = runs["abmil", 1, 3]
    own = runs["abmil-probsa-diag λ=0.5", 1, 3]
    assert plain.data.features == folder / "features" and plain.data.features.is_absolute()
    assert plain.data.labels == folder / "labels.csv"
    assert (plain.data.test_fold, plain.data.split, plain.data.standardize) == (1, None, True)
    assert (plain.training.kl_weight, own.training.kl_weight) == (0.0, 0.5)
    assert (plain.training.epochs, plain.training.tensorboard) == (7, False)
    assert (plain.seed, plain.data_seed) == (3, 0)
    none = read_grid(write_grid(folder), overrides={"data_seed": "null"})
    assert {c.config.data_seed for c in none.cells(tmp_path)} == {None}


def names_of(given, weights):
    return [e.method.name for e in methods_of(given, weights, where="g")]


def test_the_baseline_is_run_once_for_both_posteriors():
    both = ["abmil-probsa-diag", "abmil-probsa-dirac"]
    assert names_of(both, [0.0, 1.0]) == [
        "abmil",
        "abmil-probsa-diag λ=1",
        "abmil-probsa-dirac λ=1",
    ]
    assert names_of([*both, "abmil"], [0.0]) == ["abmil"]
    assert names_of(["abmil", both[0]], [1.0]) == ["abmil", "abmil-probsa-diag λ=1"]
    # of T-ABMIL, CLAM and TransMIL likewise
    others = ["tabmil-probsa-diag", "clam-sb-probsa-diag", "transmil-probsa-diag"]
    assert names_of(others, [0.0]) == ["tabmil", "clam-sb", "transmil"]


def test_a_baseline_has_the_arguments_of_its_variant():
    wide = {"name": "abmil-probsa-diag", "label": "wide", "embed": 32, "samples": 4}
    wide["training"] = {"batch_size": 2}
    entries = methods_of(["abmil", wide], [0.0, 0.1], where="g")
    assert [e.method.name for e in entries] == ["abmil", "abmil of wide", "wide λ=0.1"]
    base = entries[1]
    assert base.method.model == "abmil" and base.method.arguments == {"embed": 32}
    assert base.training == {"training.batch_size": 2}
    # λ = 0 of a listed model is that model
    same = {"name": "abmil-probsa-diag", "label": "many", "samples": 100}
    assert names_of([same, "abmil"], [0.0]) == ["abmil"]


def test_words_stand_for_families():
    every = [e.method.model for e in methods_of("all", ["cyclical"], where="g")]
    assert every == names()
    local, far = (
        {e.method.model for e in methods_of([w], [0.5], where="g")} for w in ("local", "global")
    )
    assert local | far == set(every) and not local & far
    assert {"abmil", "patchgcn", "smabmil"} <= local and {"tabmil", "vmil", "camil"} <= far
    fast = methods_of([{"name": "local", "training": {"epochs": 2}}], [0.5], where="g")
    assert {e.training["training.epochs"] for e in fast} == {2}


def test_of_two_that_say_one_key_the_nearer_holds(folder, tmp_path):
    data = {"features": str(folder / "features"), "labels": str(folder / "labels.csv")}
    models = [
        "dsmil",
        "abmil",
        {"name": "clam-sb", "training": {"epochs": 4, "batch_size": 4, "clip_norm": 2}},
    ]
    exceptions = [
        {"models": "clam*", "epochs": 5},
        {"data": "other", "epochs": 77},
        {"data": "toy", "models": ["abmil"], "epochs": 6},
    ]
    keys = {
        "data": {"toy": {**data, "epochs": 3, "clip_norm": 1}},
        "models": models,
        "exceptions": exceptions,
    }
    path = write_grid(folder, epochs=2, batch_size=9, splits=[0], **keys)
    grid = read_grid(path)
    runs = {name: c.training for (name, _, _), c in configs(grid, tmp_path).items()}
    assert {n: t.epochs for n, t in runs.items()} == {"dsmil": 3, "abmil": 6, "clam-sb": 5}
    assert {n: t.clip_norm for n, t in runs.items()} == {"dsmil": 1, "abmil": 1, "clam-sb": 2}
    assert {n: t.batch_size for n, t in runs.items()} == {"dsmil": 9, "abmil": 9, "clam-sb": 4}
    assert len(grid.notes) == 1  # on the data set `other`, which is none
    flags = read_grid(path, overrides={"training.epochs": "1"})
    assert {c.config.training.epochs for c in flags.cells(tmp_path)} == {1}


def test_flags_of_the_grid(folder, tmp_path):
    flags = {"seeds": "2", "splits": "0,2", "training.kl_weight": "0,0.5,linear", "keep": "none"}
    grid = read_grid(write_grid(folder), overrides={**flags, "slurm.partition": "gpu"})
    assert {(c.split, c.seed) for c in grid.cells(tmp_path)} == {(0, 0), (0, 1), (2, 0), (2, 1)}
    assert [m.name for m in grid.methods] == [
        "abmil",
        "abmil-probsa-diag λ=0.5",
        "abmil-probsa-diag λ=linear",
    ]
    assert (grid.file.keep, grid.file.slurm) == ("none", {"partition": "gpu"})


def test_what_is_written_is_read_as_the_same_grid(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = {"toy": {"features": "toy/features", "labels": "toy/labels.csv"}}
    exceptions = [{"models": "*diag", "learning_rate": "1e-3"}]
    path = write_grid(folder, data=data, exceptions=exceptions, kl_weight=[0, 0.1])
    grid = read_grid(path, overrides={"training.epochs": "3", "seeds": "2"})
    out = tmp_path / "out"
    grid.write(out)
    monkeypatch.chdir("/")
    again = read_grid(out / "grid.yaml")
    assert again.name == "grid" and again.cells(out) == grid.cells(out)
    assert {c.config.training.learning_rate for c in again.cells(out)} == {1e-3, 1e-4}


# data


def test_folders_are_data_sets(folder, tmp_path):
    write_folder(tmp_path / "more" / "a", seed=1)
    write_folder(tmp_path / "more" / "b", seed=2)
    (tmp_path / "more" / "notes").mkdir()
    path = write_grid(folder, data=None)
    with pytest.raises(InputError, match="--data"):
        read_grid(path)

    def result(*data):
        return {d.name: d.keys["data.features"] for d in read_grid(path, data=data).data}

    assert result(str(folder)) == {"toy": str(folder / "features")}
    assert result(f"x={folder}") == {"x": str(folder / "features")}
    assert list(result(str(tmp_path / "more"))) == ["a", "b"]
    assert list(result(f"x={folder}", str(tmp_path / "more"))) == ["x", "a", "b"]
    for wrong, fact in (
        ((str(folder), f"toy={folder}"), "'toy'"),
        ((f"x={tmp_path / 'more'}",), "'x'"),
        (("/nowhere",), "/nowhere"),
        ((str(tmp_path / "more" / "notes"),), "notes"),
    ):
        refused(InputError, fact, result, *wrong)


def test_keys_of_data_without_a_folder_hold_for_every_set_that_is_given(folder, tmp_path):
    shared = {"standardize": True, "weight_scale": "median"}
    file = write_grid(folder, data=shared, models=["abmil"])
    with pytest.raises(InputError, match="--data"):
        read_grid(file)
    grid = read_grid(file, data=[f"{name}={folder}" for name in ("one", "two")])
    assert {row.data.name for row in grid.rows} == {"one", "two"}
    for row in grid.rows:
        assert row.config.data.standardize and row.config.data.graph.weight_scale == "median"


def test_flags_replace_the_data_of_the_file(folder, tmp_path):
    write_folder(tmp_path / "other", seed=1)
    grid = read_grid(write_grid(folder), data=[str(tmp_path / "other")])
    assert [d.name for d in grid.data] == ["other"]


def test_a_study_is_made_ready_once(folder, tmp_path):
    """A cohort with instance labels is read by the loader of studies."""
    out = tmp_path / "out"
    data = {"dataset": "table", "root": str(folder), "name": "cohort", "epochs": 3}
    grid = read_grid(write_grid(folder, data=data), out=out)
    (one,) = grid.data
    assert one.name == "cohort" and one.keys["training.epochs"] == 3
    assert one.keys["data.labels"] == str(out / "data" / "cohort" / "labels.csv")
    assert one.keys["data.unlabelled"] == "leave_out"
    before = (out / "data" / "cohort" / "dataset.json").stat().st_mtime_ns
    again = read_grid(write_grid(folder, data=data), out=out)
    assert (out / "data" / "cohort" / "dataset.json").stat().st_mtime_ns == before
    assert again.cells(out) == grid.cells(out)
    # what probsa dataset wrote can be named by its folder
    named = read_grid(write_grid(folder, data=None), data=[str(out / "data" / "cohort")])
    assert named.data[0].keys["data.labels"] == one.keys["data.labels"]
    write_folder(tmp_path / "second", seed=5)
    with pytest.raises(InputError, match=r"toy.*second"):
        read_grid(write_grid(folder, data={**data, "root": str(tmp_path / "second")}), out=out)
    with pytest.raises(UnknownName, match="camelyon16"):
        read_grid(write_grid(folder, data={**data, "dataset": "camelyon"}), out=out)


def test_the_features_of_a_data_set(folder, tmp_path):
    """Keys of the data set override the grid's, flags override both; a model may have its own."""
    exceptions = [{"data": "toy", "feature_set": "b"}, {"models": "dsmil", "feature_set": "c"}]
    path = write_grid(folder, models=["abmil", "dsmil"], feature_set="a", exceptions=exceptions)

    def sets(path, **flags):
        return {r.method.name: r.config.data.feature_set for r in read_grid(path, **flags).rows}

    assert sets(path) == {"abmil": "b", "dsmil": "c"}
    assert sets(path, data=[f"x={folder}"]) == {"abmil": "a", "dsmil": "c"}
    for value, wanted in (("d", "d"), ("null", None)):
        flags = {"overrides": {"data.feature_set": value}}
        assert sets(path, **flags) == {"abmil": wanted, "dsmil": "c"}
        read_grid(path, **flags).write(tmp_path / "out")
        assert sets(tmp_path / "out" / "grid.yaml") == {"abmil": wanted, "dsmil": "c"}
    dotted = write_grid(folder, models=["abmil"], **{"data.feature_set": "a"})
    assert sets(dotted) == {"abmil": "a"}


# invalid grids


REFUSED = [
    ({"epoch": 3}, UnknownName, "'epoch'.*'epochs'"),
    ({"models": ["abmill"]}, UnknownName, "'abmill'.*'abmil'"),
    ({"models": [{"name": "abmil", "embd": 3}]}, UnknownName, "abmil.*'embd'.*'embed'"),
    ({"models": []}, InputError, "models"),
    ({"models": [3]}, InputError, "models .* 3"),
    ({"models": [{"name": "all", "embed": 3}]}, InputError, "'all'.*'embed'"),
    ({"models": [{"name": "abmil", "embed": "x"}]}, InputError, "embed .*'x'"),
    ({"models": ["abmil", {"name": "abmil", "embed": 8}]}, InputError, "'abmil'"),
    ({"models": [{"name": "abmil", "label": "-"}]}, InputError, "label '-'"),
    ({"models": [{"name": "abmil", "training": 3}]}, InputError, "training .*3"),
    ({"epochs": "many"}, InputError, "epochs .*'many'"),
    ({"optimizer": "adm"}, InputError, "optimizer .*'adm'.*'adam'"),
    ({"kl_weight": [0.1, "cycle"]}, InputError, "kl_weight .*'cycle'"),
    ({"kl_weight": ["nan"]}, InputError, "kl_weight .*'nan'"),
    ({"kl_weight": [float("inf")]}, InputError, "kl_weight .*inf"),
    ({"kl_weight": [True]}, InputError, "kl_weight .*True"),
    ({"kl_weight": [-1]}, InputError, "kl_weight .*-1"),
    ({"seeds": 0}, InputError, "seeds .*0"),
    ({"seeds": [1, 1]}, InputError, r"seeds .*\[1, 1\]"),
    ({"seeds": [-1, 0]}, InputError, r"seeds .*\[0\] .*-1"),
    ({"seeds": []}, InputError, r"seeds .*\[\]"),
    ({"splits": [7]}, InputError, "splits .*7.*0, 1, 2"),
    ({"test_fold": 1}, InputError, "test_fold .*splits"),
    ({"keep": "some"}, InputError, "keep .*'some'"),
    ({"left_out_bags": 1}, UnknownName, "left_out_bags"),
    ({"exceptions": {"epochs": 3}}, InputError, "exceptions"),
    ({"exceptions": [{"models": "abmul", "epochs": 3}]}, UnknownName, "'abmul'"),
    ({"exceptions": [{"models": "abmil", "epoch": 3}]}, UnknownName, "'epoch'.*'epochs'"),
    ({"exceptions": [{"models": "abmil", "seeds": 0}]}, InputError, "seeds .*exceptions.*0"),
    ({"data": {"a b": {}}}, InputError, "'a b'"),
    ({"data": {"features": "x"}}, InputError, "labels"),
    ({"data": "x"}, InputError, "data .*'x'"),
    ({"data": {"..": {}}}, InputError, "'..'"),
    ({"data": {"name": "a/b", "features": "x", "labels": "y"}}, InputError, "'a/b'"),
    ({"data": {"ct-a": {}, "CT_a": {}}}, InputError, "'ct-a'.*'CT_a'"),
    ({"slurm": "gpu"}, InputError, "slurm .*'gpu'"),
    ({"training": {True: 5}}, InputError, "line .*True"),
    ({"exceptions": [{1: 2}]}, InputError, "line .*1"),
    # a model cannot set the data's keys, so they are not suggested
    ({"models": [{"name": "abmil", "training": {"feature": "x"}}]}, UnknownName, "(?!.*features)"),
]


@pytest.mark.parametrize(("keys", "error", "message"), REFUSED)
def test_wrong_keys_and_values_are_refused(folder, keys, error, message):
    with pytest.raises(error, match=message):
        read_grid(write_grid(folder, **keys))


@pytest.mark.parametrize(
    ("keys", "flags", "error", "message"),
    [
        ({}, {"epoch": "3"}, UnknownName, "flags .*'epoch'"),
        ({}, {"training.epochs": "3", "seeds": "0"}, InputError, "seeds .*--epochs, --seeds.* 0"),
        ({"slurm": "gpu"}, {"slurm.partition": "short"}, InputError, "slurm .*--slurm.partition"),
        ({"data": {"features": "x", "labels": "/nothing.csv"}}, {}, InputError, "x, .*grid.yaml"),
    ],
)
def test_wrong_flags_are_looked_for_among_the_flags(folder, keys, flags, error, message):
    with pytest.raises(error, match=message):
        read_grid(write_grid(folder, **keys), overrides=flags)


def test_flags_win_over_what_the_file_says_of_some(folder, tmp_path):
    models = ["dsmil", {"name": "abmil-probsa-diag", "kl_weight": [0.1, 1]}]
    exceptions = [{"models": "dsmil", "seeds": 3, "epochs": 7}]
    path = write_grid(folder, models=models, exceptions=exceptions, slurm={"account": "a"})
    flags = {"seeds": "1", "training.kl_weight": "linear", "slurm.partition": "gpu"}
    grid = read_grid(path, overrides=flags)
    runs = configs(grid, tmp_path)
    assert {(m, seed) for m, _, seed in runs} == {("dsmil", 0), ("abmil-probsa-diag λ=linear", 0)}
    assert {c.training.epochs for (m, _, _), c in runs.items() if m == "dsmil"} == {7}
    assert grid.file.slurm == {"account": "a", "partition": "gpu"}


@pytest.mark.parametrize("name", ["dataset", "features", "labels"])
def test_a_data_set_may_be_called_what_its_parts_are(folder, name):
    grid = read_grid(write_grid(folder, data=None), data=[f"{name}={folder}"])
    assert [d.name for d in grid.data] == [name]


def test_λ_is_listed_once_each():
    assert kl_weights(["1e-3", 0.001], where="g") == [0.001]  # YAML's 1e-3 is text
    assert kl_weights([0, 0.0, "linear", 1, 1.0], where="g") == [0.0, "linear", 1.0]


# checks before a run


def checked(folder, tmp_path, **keys):
    grid = read_grid(write_grid(folder, **keys))
    return check_grid(grid, tmp_path / "out")


def table(folder, *, group=None, split=None, labels=None):
    """Rewrite labels.csv with a row for each of the twelve bags."""
    lines = ["bag,label" + (",group" if group else "") + (",split" if split else ",fold")]
    for k in range(12):
        label = k % 2 if labels is None else labels[k]
        more = [group(k)] if group else []
        last = split(k) if split else k // 2 % 3
        lines.append(",".join(str(v) for v in (f"{k:03d}", label, *more, last)))
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")


def test_a_sound_grid_passes(folder, tmp_path):
    result = checked(folder, tmp_path, models=["abmil", "setmil", "patchgcn", "vmil"])
    assert result.notes == () and result.new == {}
    assert not (tmp_path / "out").exists()


def parts(*tested):
    """Return the part of each bag, by its number."""
    return lambda k: "test" if k in tested else "train"


NO_GRAPH = {"graph": "none"}


@pytest.mark.parametrize(
    ("labels", "keys", "error", "fact"),
    [
        ({"split": parts(1, 3, 5)}, {}, TableError, "3 bags of class 1"),
        ({"group": lambda k: "p" if k in (0, 2) else f"q{k}"}, {}, TableError, "'p'"),
        (
            {"labels": [0, 1, 2] * 4, "split": parts(*range(6))},
            {"models": ["abmil", "vmil"], "splits": 2},
            InputError,
            "toy: vmil .*multiclass",
        ),
        ({}, {"models": ["patchgcn", "abmil"], **NO_GRAPH}, GraphError, "neighbours"),
        ({}, {"models": ["abmil", "patchgcn"], **NO_GRAPH}, InputError, "patchgcn .*neighbours"),
    ],
)
def test_a_grid_that_cannot_finish_is_refused(folder, tmp_path, labels, keys, error, fact):
    table(folder, **labels)
    with pytest.raises(error, match=fact):
        checked(folder, tmp_path, **keys)
    assert not (tmp_path / "out").exists()


def test_a_copied_bag_is_refused_or_noted(folder, tmp_path):
    (folder / "features" / "002.h5").write_bytes((folder / "features" / "000.h5").read_bytes())
    with pytest.raises(TableError, match=r"'000' .*'002' .*labels\.csv"):
        checked(folder, tmp_path)
    result = checked(folder, tmp_path, leaks="note")
    # reported once per split, since the parts differ
    assert len(result.notes) == 3 and all("'000'" in note for note in result.notes)


def test_copies_are_looked_for_once(folder, tmp_path, monkeypatch):
    out = tmp_path / "out"
    grid = read_grid(write_grid(folder))
    store_checked(check_grid(grid, out), out)

    def never(*_):
        raise AssertionError("all bags were read again")

    with monkeypatch.context() as patched:
        patched.setattr("probsa.benchmark.grid.checks.find_copies", never)
        assert check_grid(grid, out).notes == ()
    copied = (folder / "features" / "000.h5").read_bytes()
    (folder / "features" / "002.h5").write_bytes(copied)
    (out / "copies" / "toy.json").unlink()
    noting = read_grid(write_grid(folder, leaks="note"))
    first = check_grid(noting, out)
    store_checked(first, out)
    monkeypatch.setattr("probsa.benchmark.grid.checks.find_copies", never)
    assert check_grid(noting, out).notes == first.notes != ()
    (folder / "features" / "000.h5").write_bytes((folder / "features" / "001.h5").read_bytes())
    with pytest.raises(AssertionError, match=r"read again"):  # its size has changed
        check_grid(grid, out)


def test_what_can_be_compared(folder, tmp_path):
    checked(folder, tmp_path, models=["abmil"], **NO_GRAPH)
    table(folder, labels=[0, 1, 2] * 4, split=parts(*range(6)))
    assert checked(folder, tmp_path, models=["abmil", "clam-sb"], splits=2).new.keys() == {"toy"}


def test_splits_are_made_once(folder, tmp_path):
    table(folder, split=parts(0, 1, 2, 3))
    out = tmp_path / "out"
    grid = read_grid(write_grid(folder, splits=4))
    result = check_grid(grid, out)
    assert [len(s.val) for s in result.new["toy"]] == [2, 2, 2, 2]
    store_checked(result, out)
    cell = grid.cells(out)[-1]
    assert cell.config.data.split == out / "splits" / "toy" / "splits_3.csv"
    assert cell.config.data.split.is_file() and cell.config.data.test_fold is None
    assert check_grid(grid, out).new == {}
    with pytest.raises(InputError, match=r"'splits': 4.*'splits': 3"):
        check_grid(read_grid(write_grid(folder, splits=3)), out)


def test_some_of_the_splits(folder, tmp_path):
    table(folder, split=parts(0, 1))
    grid = read_grid(write_grid(folder, splits=[1, 3]))
    assert {c.split for c in grid.cells(tmp_path)} == {1, 3}
    assert len(check_grid(grid, tmp_path).new["toy"]) == 5  # the first of the five is still 0
    assert read_grid(write_grid(folder, splits=[1, 7])).data[0].made == 8  # so that split 7 exists


def test_classes_are_named_by_the_grid(folder):
    table(folder, labels=["tumour", "benign"] * 6)
    of = read_grid(write_grid(folder, classes=["tumour", "benign"])).data[0].table
    assert of.classes == ("tumour", "benign")


# recipes


COUNTS = {
    "rsna": (16, 5),
    "panda": (16, 5),
    "camelyon16": (16, 5),
    "comparison": (16, 5),
    "ablation": (18, 5),
    "standins": (20, 3),
    "standins-ablation": (9 * 5 + 9 * 3, 3),
    "standins-kl": (5 * 3, 3),
    "panda-isup": (8, 5),
}
"""The methods (times seeds) and the splits of each recipe."""


@pytest.mark.parametrize(
    ("name", "methods", "splits"),
    [(name, *counts) for name, counts in COUNTS.items()],
)
def test_every_recipe_is_a_grid(folder, tmp_path, name, methods, splits):
    """Recipes run on the toy bags, with a fixed test part unless they need folds."""
    if name == "panda-isup":
        table(folder, split=parts(0, 1, 2, 3), labels=[0, 1, 2, 3] * 3)
    elif "standins" not in name:
        table(folder, split=parts(0, 1, 2, 3))
    grid = read_grid(RECIPES / f"{name}.yaml", data=[f"own={folder}"])
    assert len(grid.cells(tmp_path)) == methods * splits
    assert len((RECIPES / f"{name}.yaml").read_text().splitlines()) <= 40


def test_all_recipes_are_tested():
    run_recipes = {"default", "paper"}  # see tests/training/test_recipes.py
    assert {p.stem for p in RECIPES.glob("*.yaml")} - run_recipes == set(COUNTS)


def training(folder, recipe, data):
    grid = read_grid(
        RECIPES / f"{recipe}.yaml", data=[f"{data}={folder}"], overrides={"splits": "0,1"}
    )
    return {r.method.name: r.config for r in grid.rows}


def test_the_recipes_are_the_papers_runs(folder):
    """Recipes match section 6 of the paper: batch sizes, learning rate, epochs, class weights,
    encoders."""
    runs = {name: training(folder, name, name) for name in ("rsna", "panda", "camelyon16")}
    leaks = {n: read_grid(RECIPES / f"{n}.yaml", data=[f"{n}={folder}"]).file.leaks for n in runs}
    # its partition is the paper's, near-duplicates on both sides included
    assert leaks == {"rsna": "refuse", "panda": "note", "camelyon16": "refuse"}
    for of in runs.values():
        assert {c.training.epochs for c in of.values()} == {100}
        assert {c.training.learning_rate for c in of.values()} == {1e-4}
    sizes = {n: {m: c.training.batch_size for m, c in of.items()} for n, of in runs.items()}
    assert set(sizes["rsna"].values()) == {32}
    assert {m for m, size in sizes["panda"].items() if size != 32} == {"setmil"}
    alone = {m for m, size in sizes["camelyon16"].items() if size == 1}
    assert alone == {
        *("tabmil", "tabmil-probsa-dirac λ=cyclical", "tabmil-probsa-diag λ=cyclical"),
        *("transmil", "setmil", "gtp", "iibmil", "camil", "vmil"),
    }
    assert {sizes["camelyon16"][m] for m in set(sizes["camelyon16"]) - alone} == {4}
    for name, balanced, features in (
        ("rsna", True, "features_resnet50"),
        ("panda", True, "features_resnet50_bt"),
        ("camelyon16", False, "features_resnet50_bt"),
    ):
        assert {c.training.balanced for c in runs[name].values()} == {balanced}
        assert {c.data.feature_set for c in runs[name].values()} == {features}
    ablation = training(folder, "ablation", "camelyon16")
    assert ablation["tabmil"].training.batch_size == 1 and not ablation["abmil"].training.balanced
    assert ablation["abmil-probsa-diag λ=0.5"].training.batch_size == 4
    assert training(folder, "ablation", "rsna")["tabmil"].training.balanced


@pytest.mark.parametrize("data", ["rsna", "panda", "camelyon16"])
def test_recipes_of_several_data_sets_have_the_runs_of_one(folder, data):
    """All settings of all methods, and leaks that the published partition has are no error."""
    alone = training(folder, data, data)
    assert training(folder, "comparison", data) == alone
    ablation = training(folder, "ablation", data)
    shared = ablation.keys() & alone.keys()
    assert len(shared) == 6 and {m: ablation[m] for m in shared} == {m: alone[m] for m in shared}
    leaks = [
        read_grid(RECIPES / f"{name}.yaml", data=[f"{data}={folder}"]).file.leaks
        for name in (data, "comparison", "ablation")
    ]
    assert "note" in leaks or data != "panda"
    assert leaks[1:] == ["note", "note"]


def test_the_recipes_of_the_paper_have_f1_at_half(folder):
    stated = {
        path.stem: read_grid(path, data=[f"own={folder}"]).file.f1_at_half
        for path in RECIPES.glob("*.yaml")
        if path.stem not in ("default", "paper")
    }
    assert {name for name, at_half in stated.items() if not at_half} == {"panda-isup"}


def test_one_command_runs_the_published_folder(tmp_path):
    """The recipe reads a miniature of CAMELYON16 in the authors' processed layout."""
    root = tmp_path / "release"
    g = np.random.default_rng(0)
    slides = {f"normal_{k:03d}": 0 for k in range(1, 5)} | {
        f"tumor_{k:03d}": 1 for k in range(1, 5)
    }
    slides |= {"test_001": 1, "test_003": 0, "test_005": 0, "test_008": 1}
    bags = {name: (y, np.array([y, 0, 0, 0])) for name, y in slides.items()}
    base = write_processed(root / "patches_512", bags, encoder="features_resnet50_bt")
    (base / "features" / "features_UNI").mkdir()
    for name in bags:
        for encoder in ("resnet50_bt", "UNI"):
            file = base / "features" / f"features_{encoder}" / f"{name}.npy"
            np.save(file, g.normal(size=(4, 3)).astype(np.float32))
    parts = {name: "test" if name.startswith("test") else "train" for name in slides}
    write_splits(root / "splits.csv", parts)
    out = tmp_path / "out"
    flags = {"models": "abmil,patchgcn", "splits": "2", "training.epochs": "1"}
    small = {"training.device": "cpu", "training.threads": "1"}
    grid = read_grid(
        RECIPES / "camelyon16.yaml", data=[str(root)], overrides=flags | small, out=out
    )
    assert [d.name for d in grid.data] == ["camelyon16"]
    assert any("camelyon16: " in n for n in grid.notes)  # notes of the study
    states = run_grid(grid, out)
    assert [s.status for s in states] == ["done"] * 4
    (config,) = {s.cell.config.data.features for s in states}
    assert config.is_relative_to(root)
    predictions = read_predictions(states[0].cell.folder(out) / "predictions")
    tested = [
        b for b, part in zip(predictions.bags, predictions.parts, strict=True) if part == "test"
    ]
    assert tested == ["test_001", "test_003", "test_005", "test_008"]
    again = read_grid(out / "grid.yaml")
    assert again.cells(out) == grid.cells(out)


def test_methods_that_cost_more_can_have_fewer_seeds(folder, tmp_path):
    path = write_grid(
        folder, models=["abmil", "dsmil"], seeds=3, exceptions=[{"models": "dsmil", "seeds": [1]}]
    )
    grid = read_grid(path)
    assert grid.seeds == (0, 1, 2)
    cells = grid.cells(tmp_path)
    assert {c.seed for c in cells if c.method.model == "dsmil"} == {1}
    assert {c.seed for c in cells if c.method.model == "abmil"} == {0, 1, 2}


def test_the_recipe_of_stand_ins(folder):
    runs = training(folder, "standins", "ct_ich")
    brief = {m for m, c in runs.items() if c.training.epochs == 20}
    half = {m for m, c in runs.items() if c.training.precision == "bf16"}
    assert brief - half == {"camil", "transmil", "transmil-probsa-diag λ=cyclical", "vmil"}
    assert half < brief and {"gtp", "tabmil", "tabmil-probsa-diag λ=cyclical"} <= half
    assert {c.training.epochs for m, c in runs.items() if m not in brief} == {40}
    assert all(c.data.standardize and c.training.batch_size == 4 for c in runs.values())
