"""LocalMIL's scripts: sets, measures, checks of maps, tables, and one small run of everything."""

import csv
import importlib
import sys

import h5py
import numpy as np
import pytest
import torch
import yaml
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score
from support.grids import SHORT_RUNS, write_grid
from support.localmil import BAGS, FOLDS, LABELS, N, Y, run_of, write_experiment, write_set
from support.paths import ROOT
from support.refusals import refused
from support.stored import write_folder

from probsa.benchmark import read_grid, run_grid
from probsa.core import TextTable, select_instances
from probsa.errors import InputError
from probsa.evaluation import choose_map_score, deletion_curves, load, map_values, read_predictions
from probsa.statistics import Difference
from probsa.training import open_units

FOLDER = ROOT / "benchmarks" / "localmil"
MODULES = ("sets", "map_checks", "measures", "leaderboard", "submit", "page", "run")
DESCRIPTION = {"title": "toy", "source": "made", "licence": "none", "commit": "1", "graph": "grid"}


@pytest.fixture
def scripts(monkeypatch):
    """Return a function that imports a script by its name; nothing of them stays imported."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def run(scripts, monkeypatch):
    """Return a function that runs a script with arguments."""

    def call(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        scripts(name).main()

    return call


def rows_of(path):
    with path.open(newline="") as f:
        return {row["method"]: row for row in csv.DictReader(f)}


# sets


def made_set(root, *, name="toy", description=DESCRIPTION, labels=None, truth=True, axes=2):
    folder = root / name
    (folder / "features").mkdir(parents=True)
    rng = np.random.default_rng(0)
    rows = []
    for k in range(18):
        y = k % 2
        with h5py.File(folder / "features" / f"b{k:02}.h5", "w") as f:
            f["features"] = rng.normal(size=(4, 3)).astype(np.float32)
            f["coords"] = (np.stack([np.arange(4), np.zeros(4)], 1)[:, :axes] * 256).astype(int)
            if truth:
                f["instance_labels"] = np.array([y, 0, 0, y], np.int8)
        rows.append({"bag": f"b{k:02}", "label": y, "group": f"g{k // 2}", "fold": k // 2 % 3})
    rows = labels(rows) if labels else rows
    with (folder / "labels.csv").open("w", newline="") as f:
        writer = csv.DictWriter(f, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    if description is not None:
        (folder / "set.yaml").write_text(yaml.safe_dump(description))
    return folder


def test_a_set_is_counted_and_its_fingerprint_is_of_its_labels(scripts, tmp_path):
    folder = made_set(tmp_path)
    check_sets = scripts("sets").check_sets
    (found,) = check_sets(tmp_path)
    assert (found.bags, found.positive_bags, found.groups, found.folds) == (18, 9, 9, 3)
    assert (found.instances, found.positive_instances) == (72, 18)
    assert found.keys()["graph"] == "grid"
    with h5py.File(folder / "features" / "b01.h5", "a") as f:
        f["instance_labels"][...] = [1, 1, 0, 1]
    (after,) = check_sets(tmp_path)
    assert after.fingerprint != found.fingerprint


@pytest.mark.parametrize("name", ["ct_ich", "colon_tiles", "apnea", "magnetic_tiles", "lgg_tiles"])
def test_known_sets_have_a_description(scripts, tmp_path, name):
    graph = scripts("sets").describe(name, tmp_path).graph
    assert graph == ("grid" if name.endswith("tiles") else "chain")


def change(column, value, *, row=0):
    return lambda rows: [{**r, column: value} if k == row else r for k, r in enumerate(rows)]


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        ({"description": None}, "'toy' .*set.yaml"),
        ({"description": {k: DESCRIPTION[k] for k in ("title", "graph")}}, "source"),
        ({"description": {**DESCRIPTION, "graph": "tree"}}, "'tree'"),
        ({"description": {**DESCRIPTION, "graph": "chain"}}, "chain"),
        ({"labels": change("label", 0, row=1)}, "'b01'"),
        ({"labels": change("label", 2)}, r"\['0', '1', '2'\]"),
        ({"labels": lambda rows: [{k: r[k] for k in ("bag", "label")} for r in rows]}, "'fold'"),
        (
            {"labels": lambda rows: [{**r, "fold": k % 4} for k, r in enumerate(rows)]},
            r"fold 0 .*\['0'\]",
        ),
        ({"truth": False}, "instance_labels"),
    ],
)
def test_a_set_that_cannot_be_used_is_refused(scripts, tmp_path, given, fact):
    made_set(tmp_path, **given)
    refused(InputError, fact, scripts("sets").check_sets, tmp_path)


def test_an_empty_folder_and_an_unknown_set_are_refused(scripts, tmp_path):
    check_sets = scripts("sets").check_sets
    refused(InputError, str(tmp_path), check_sets, tmp_path)
    made_set(tmp_path)
    refused(InputError, "'other'", check_sets, tmp_path, ["other"])


# measures


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    out = tmp_path_factory.mktemp("localmil")
    write_experiment(out)
    write_set(out / "set")
    return out


def runs_of(out, *, seeds=(0, 1), folds=range(4)):
    return [run_of(out, fold, seed=seed) for seed in seeds for fold in folds]


def test_measures_equal_those_computed_from_the_files(scripts, experiment):
    measures = scripts("measures")
    found = measures.measured(runs_of(experiment), experiment / "set")
    y = np.array([Y[b] for b in found.table.bags])
    p = []
    precisions = []
    for seed in (0, 1):
        rng = np.random.default_rng((seed, 0))
        of_seed = {b: np.clip(0.25 + 0.5 * Y[b] + rng.normal(0, 0.2), 0.02, 0.98) for b in Y}
        means = {b: rng.normal(size=N) + 0.5 * np.array(LABELS[b]) for b in BAGS}
        p.append([of_seed[b] for b in found.table.bags])
        precisions += [average_precision_score(LABELS[b], means[b]) for b in BAGS if Y[b]]
    got = measures.means(found)
    nll = np.mean([log_loss(y, of_seed) for of_seed in p])
    assert got["nll"].difference == pytest.approx(nll, abs=1e-6)
    assert got["ap"].difference == pytest.approx(np.mean(precisions), abs=1e-6)
    folds = [[found.table.bags.index(b) for b in fold] for fold in FOLDS]
    areas = [roc_auc_score(y[rows], np.array(s)[rows]) for s in p for rows in folds]
    assert got["auroc"].difference == pytest.approx(np.mean(areas), abs=1e-6)
    assert got["auroc"].low < got["auroc"].difference < got["auroc"].high


@pytest.mark.parametrize(("folds", "fact"), [(3, "'f3b0'"), (4, "12 instances")])
def test_a_row_needs_every_bag_with_its_instances(scripts, tmp_path, folds, fact):
    write_experiment(tmp_path, seeds=1)
    prepared = write_set(tmp_path / "set", n=N if folds == 3 else N + 1)
    given = runs_of(tmp_path, seeds=(0,), folds=range(folds))
    refused(SystemExit, fact, scripts("measures").measured, given, prepared)


def test_some_folds_are_measured_alone(scripts, experiment):
    given = runs_of(experiment, folds=(0, 2))
    found = scripts("measures").measured(given, experiment / "set", folds=(0, 2))
    assert set(found.table.bags) == {*FOLDS[0], *FOLDS[2]}


# the table of a set


def null_map(method):
    rng = np.random.default_rng(0)
    names = method.table.bags
    ap = [average_precision_score(LABELS[b], rng.normal(size=N)) if Y[b] else np.nan for b in names]
    return type(method)(table=method.table, p=None, values={"ap": np.array([ap])})


def test_a_better_map_wins_and_gains_over_the_null(scripts, tmp_path):
    write_experiment(tmp_path, better=4.0)
    folder = write_set(tmp_path / "set")
    measured = scripts("measures").measured
    cells = tmp_path / "cells" / "toy"
    methods = {
        name: measured(sorted((cells / name).glob("*/predictions")), folder)
        for name in ("abmil", "clam-sb")
    }
    nulls = {"centre": null_map(methods["abmil"])}
    rows = {r["method"]: r for r in scripts("leaderboard").rows_of(methods, nulls)}
    assert next(iter(rows)) == "clam-sb"
    assert (rows["clam-sb"]["ap_winner"], rows["abmil"]["ap_winner"]) == ("1", "0")
    gain = float(rows["clam-sb"]["ap"]) - float(rows["centre (null)"]["ap"])
    assert float(rows["clam-sb"]["gain"]) == pytest.approx(gain, abs=1e-5)
    assert rows["clam-sb"]["gain_winner"] == "1"
    assert rows["centre (null)"]["auroc"] == "" and rows["centre (null)"]["gain"] == ""


def test_gains_are_adjusted_for_the_number_of_methods(scripts):
    above_zero = scripts("leaderboard").above_zero
    one = Difference(difference=0.1, low=0.02, high=0.18, p=0.01)
    noise = {f"n{k}": Difference(difference=0.0, low=-0.1, high=0.1, p=0.9) for k in range(30)}
    worse = Difference(difference=-0.5, low=-0.6, high=-0.4, p=1e-9)
    assert above_zero({"one": one, "worse": worse}) == {"one"}
    assert above_zero({"one": one, **noise}) == frozenset()


# checks of maps

MODELS = [
    {"name": "abmil", "embed": 4, "attention_dim": 4},
    {"name": "camil", "embed": 16, "landmarks": 4},
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checked") / "toy"
    write_folder(folder)
    grid = read_grid(write_grid(folder, **(SHORT_RUNS | {"models": MODELS, "epochs": 1})))
    out = folder.parent / "out"
    return out, [s.cell for s in run_grid(grid, out)]


def test_checks_of_maps_equal_what_they_stand_for(scripts, trained):
    map_checks = scripts("map_checks")
    out, cells = trained
    assert map_checks.check_maps(out, bags=1) == []
    for cell in cells:
        found = map_checks.read_map_checks(cell.folder(out))
        closed = cell.config.model == "abmil"
        assert found.removal == ("pooling" if closed else "bag")
        table = read_predictions(cell.folder(out) / "predictions")
        rows = list(zip(table.bags, table.parts, table.labels, strict=True))
        positive = {b for b, part, y in rows if part == "test" and y}
        assert set(found.correlations) == positive if closed else len(found.correlations) == 1
        predictor = load(cell.folder(out), device="cpu")
        bags, _ = open_units(cell.config.data)
        for name, area in found.areas.items():
            expected = deletion_curves(predictor, bags.bag(name))[1].areas["shown"]
            assert area == pytest.approx(expected, abs=1e-6)
        name, value = next(iter(found.correlations.items()))
        bag = bags.bag(name)
        place = torch.arange(len(bag))
        after = [
            float(predictor.predict([select_instances(bag, place[place != i])])[0].probability[-1])
            for i in place.tolist()
        ]
        drops = [float(table.probability[table.bags.index(name), -1]) - p for p in after]
        shown = table.instances(name).attention_mean
        assert value == pytest.approx(spearmanr(shown, drops)[0], abs=1e-5)
        val = [b for b, part, _ in rows if part == "val"]
        choice = choose_map_score(predictor, val, read=bags.bag, threshold=table.threshold)
        assert found.shown == choice.chosen
        for name, precision in found.shown_precisions.items():
            p = table.instances(name)
            y = p.instance_labels > 0
            if y.all() or not y.any():
                assert precision is None
                continue
            score = map_values(p, found.shown)
            score = score if score.ndim == 1 else score[:, -1]
            assert precision == pytest.approx(average_precision_score(y, score))


def test_what_is_known_is_kept_and_a_run_that_cannot_be_read_is_named(scripts, trained):
    map_checks = scripts("map_checks")
    out, cells = trained
    map_checks.check_maps(out, bags=1)
    files = [c.folder(out) / map_checks.FILE for c in cells if c.config.model == "camil"]
    stamp = files[1].stat().st_mtime_ns
    files[0].write_text("{")
    (failure,) = map_checks.check_maps(out, bags=1)
    assert str(files[0].parent) in failure and files[0].read_text() == "{"
    assert files[1].stat().st_mtime_ns == stamp
    files[0].unlink()
    assert map_checks.check_maps(out, bags=2) == []
    assert len(map_checks.read_map_checks(files[1].parent).correlations) == 2


# everything


def test_one_command_trains_checks_and_tabulates_and_continues(run, tmp_path, capsys):
    folder = tmp_path / "sets" / "toy"
    write_folder(folder, bags=18)
    (folder / "set.yaml").write_text(yaml.safe_dump({**DESCRIPTION, "graph": "chain"}))
    out = tmp_path / "out"
    models = ("--models", "abmil", "mean-pool")
    short = ("--seeds", "1", "--splits", "0,1", "--epochs", "1")
    line = (tmp_path / "sets", "--out", out, *models, *short)
    run("run", *line)
    rows = rows_of(out / "leaderboard" / "toy.csv")
    assert {"abmil", "mean-pool", "centre (null)"} <= set(rows)
    for measure in ("auroc", "nll", "ap", "gain", "ap_shown", "area", "faithfulness", "seconds"):
        assert rows["abmil"][measure] != "", measure
    before = (out / "leaderboard" / "toy.csv").read_bytes()
    run("run", *line)
    assert (out / "leaderboard" / "toy.csv").read_bytes() == before
    page = tmp_path / "page.html"
    run("page", out / "leaderboard" / "toy.csv", "--out", page)
    assert "mean-pool" in page.read_text()


def test_a_row_of_ones_own_stands_on_the_page_and_is_escaped(run, experiment, tmp_path):
    row = tmp_path / "mine" / "toy.csv"
    given = runs_of(experiment)
    run("submit", *given, "--set", experiment / "set", "--method", "<b>mine", "--out", row)
    (written,) = TextTable.read(row).rows
    board = tmp_path / "toy.csv"
    null = {**dict.fromkeys(written, ""), "method": "centre (null)", "ap": "10"}
    with board.open("w", newline="") as f:
        writer = csv.DictWriter(f, list(written))
        writer.writeheader()
        writer.writerow(null)
    page = tmp_path / "page.html"
    run("page", board, row, "--out", page)
    html = page.read_text()
    assert html.count("&lt;b&gt;mine") == 4 and "<b>mine" not in html and "http" not in html


def test_the_page_of_the_stored_tables_is_the_stored_page(run, tmp_path):
    page = tmp_path / "leaderboard.md"
    run("page", *sorted(FOLDER.glob("*.csv")), "--out", page)
    stored = (FOLDER / "leaderboard.md").read_text()
    assert page.read_text().splitlines()[4:] == stored.splitlines()[4:]


def test_the_models_of_the_grid_are_models(scripts, tmp_path):
    run = scripts("run")
    folder = made_set(tmp_path)
    sets = scripts("sets").check_sets(tmp_path)
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump(run.grid_of(sets, [])))
    grid = read_grid(path)
    assert len(grid.methods) == len(yaml.safe_load((FOLDER / "grid.yaml").read_text())["models"])
    assert grid.data[0].name == folder.name
    assert {r.config.data.graph.kind for r in grid.rows} == {"grid"}
