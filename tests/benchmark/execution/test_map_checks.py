"""Checks of maps equal predictions of shortened bags; models without a closed form use few bags."""

import json

import pytest
import torch
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score
from support.grids import SHORT_RUNS, write_grid
from support.stored import write_folder

from probsa.benchmark.execution import map_checks
from probsa.benchmark.execution.map_checks import FILE, read_map_checks
from probsa.benchmark.execution.running import run_grid
from probsa.benchmark.execution.training import Watch
from probsa.benchmark.grid.grid import read_grid
from probsa.benchmark.leaderboard import entry_of
from probsa.benchmark.results.results import read_results
from probsa.core import select_instances
from probsa.errors import InputError
from probsa.evaluation import choose_map_score, deletion_curves, load, read_predictions
from probsa.evaluation.map_scores import map_values
from probsa.training import open_units

MODELS = [
    {"name": "abmil", "embed": 4, "attention_dim": 4},
    {"name": "camil", "embed": 16, "landmarks": 4},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("left_out") / "toy"
    write_folder(folder)
    return folder


def positive_test_bags(table):
    rows = zip(table.bags, table.parts, table.labels, strict=True)
    return {b for b, part, y in rows if part == "test" and y}


def grid_of(folder, **keys):
    given = SHORT_RUNS | {"models": MODELS, "epochs": 1, "left_out_bags": 1} | keys
    return read_grid(write_grid(folder, **given))


@pytest.fixture(scope="module")
def grid(folder):
    return grid_of(folder)


@pytest.fixture(scope="module")
def run(grid, folder):
    out = folder.parent / "out"
    return out, [s.cell for s in run_grid(grid, out)]


def test_correlations_equal_predictions_of_the_shortened_bags(run):
    out, cells = run
    for cell in cells:
        found = read_map_checks(cell.folder(out)).correlations
        table = read_predictions(cell.folder(out) / "predictions")
        if cell.config.model == "abmil":
            assert set(found) == positive_test_bags(table)
        else:
            assert len(found) == 1
        name, value = next(iter(found.items()))
        row = table.bags.index(name)
        assert (table.parts[row], table.labels[row]) == ("test", 1)
        bags, _ = open_units(cell.config.data)
        bag, rows = bags.bag(name), torch.arange(len(bags.bag(name)))
        predictor = load(cell.folder(out), device="cpu")
        after = [
            float(predictor.predict([select_instances(bag, rows[rows != i])])[0].probability[-1])
            for i in rows.tolist()
        ]
        drops = [float(table.probability[row, -1]) - p for p in after]
        shown = table.instances(name).attention_mean
        assert value == pytest.approx(spearmanr(shown, drops)[0], abs=1e-5)


def test_areas_are_those_of_the_own_score(run):
    out, cells = run
    for cell in cells:
        found = read_map_checks(cell.folder(out))
        assert found.removal == ("pooling" if cell.config.model == "abmil" else "bag")
        predictor = load(cell.folder(out), device="cpu")
        bags, _ = open_units(cell.config.data)
        for name, area in found.areas.items():
            curves = deletion_curves(predictor, bags.bag(name))[1]
            assert area == pytest.approx(curves.areas["shown"], abs=1e-6)


def test_the_shown_score_is_that_of_the_validation_bags(run):
    out, cells = run
    for cell in cells:
        found = read_map_checks(cell.folder(out))
        table = read_predictions(cell.folder(out) / "predictions")
        bags, _ = open_units(cell.config.data)
        val = [b for b, part in zip(table.bags, table.parts, strict=True) if part == "val"]
        choice = choose_map_score(
            load(cell.folder(out), device="cpu"), val, read=bags.bag, threshold=table.threshold
        )
        assert found.shown == choice.chosen
        for name, value in found.shown_precisions.items():
            p = table.instances(name)
            y = p.instance_labels > 0
            if y.all() or not y.any():
                assert value is None
            else:
                score = map_values(p, found.shown)
                score = score if score.ndim == 1 else score[:, -1]
                assert value == pytest.approx(average_precision_score(y, score))


def test_the_leaderboard_has_them_beside_the_closed_form(run):
    out, cells = run
    entries = {e.name: e for s in read_results(out).scores if (e := entry_of(s)) is not None}
    stored: dict[str, float | None] = {}
    for cell in (c for c in cells if c.config.model == "camil"):
        stored |= read_map_checks(cell.folder(out)).correlations
    values = dict(
        zip(entries["camil"].scores.bags, entries["camil"].values["faithfulness"][0], strict=True)
    )
    assert {b: v for b, v in values.items() if v == v} == pytest.approx(stored)
    assert len(stored) == len({c.split for c in cells}) == 3
    own = entries["abmil"].values["faithfulness"][0]
    assert int((own == own).sum()) > len(stored)
    for cell in cells:
        found = read_map_checks(cell.folder(out))
        entry = entries[cell.config.model]
        for measure, of_bags in (
            ("area", found.areas),
            ("shown_precision", found.shown_precisions),
        ):
            row = dict(zip(entry.scores.bags, entry.values[measure][0], strict=True))
            for bag, value in of_bags.items():
                assert row[bag] == value or (value is None and row[bag] != row[bag])


def test_what_is_known_is_kept_and_what_is_damaged_or_fewer_is_not(run, grid, folder):
    out, cells = run
    files = [c.folder(out) / FILE for c in cells if c.config.model == "camil"]
    before = [f.read_bytes() for f in files]
    files[0].write_text("{")
    with pytest.raises(InputError, match=FILE):
        [entry_of(s) for s in read_results(out).scores]
    stamp = files[1].stat().st_mtime_ns
    run_grid(grid, out)
    assert files[0].read_text() == "{"  # it may be the user's
    files[0].unlink()
    run_grid(grid, out)
    assert [f.read_bytes() for f in files] == before
    assert files[1].stat().st_mtime_ns == stamp
    run_grid(grid_of(folder, left_out_bags=2), out)
    assert json.loads(files[1].read_text())["asked"] == 2
    assert len(read_map_checks(files[1].parent).correlations) == 2


def test_a_run_that_cannot_be_read_is_noted_and_tried_again(run, folder):
    out, cells = run
    cell = next(c for c in cells if c.config.model == "camil")
    weights = cell.folder(out) / "checkpoints" / "best.safetensors"
    stored = weights.read_bytes()
    weights.write_bytes(b"x")
    notes = []

    class Noting(Watch):
        def note(self, text):
            notes.append(text)

    changed = grid_of(folder, left_out_bags=3)
    run_grid(changed, out, watch=Noting())
    assert len(notes) == 1 and "its maps were not checked" in notes[0] and cell.name in notes[0]
    weights.write_bytes(stored)
    run_grid(changed, out, watch=Noting())
    assert len(notes) == 1 and read_map_checks(cell.folder(out)).asked == 3


def test_bags_above_the_limit_are_passed_over(run, folder, monkeypatch):
    out, cells = run
    camil = [c for c in cells if c.config.model == "camil"]
    bags, _ = open_units(camil[0].config.data)
    large: set[str] = set()
    monkeypatch.setattr(map_checks, "LEAVE_ONE_OUT_UP_TO", 6)
    run_grid(grid_of(folder, left_out_bags=4), out)
    for cell in camil:
        table = read_predictions(cell.folder(out) / "predictions")
        positive = positive_test_bags(table)
        small = {b for b in positive if len(bags.bag(b)) <= 6}
        assert set(read_map_checks(cell.folder(out)).correlations) == small
        large |= positive - small
    assert large
