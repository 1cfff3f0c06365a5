"""A grid is finished whatever interrupts it, and its cells equal runs made one by one."""

import errno
import json
import os
import pickle
import signal

import pytest
from support import forks
from support.grids import SHORT_RUNS, write_grid
from support.leftovers import temporary_of
from support.processes import fork_workers
from support.stored import write_folder
from support.toy_stage import wait_for

from probsa.benchmark import (
    Watch,
    check_grid,
    count_states,
    plan,
    read_grid,
    run_grid,
    write_report,
)
from probsa.benchmark.execution import cells as cells_module
from probsa.benchmark.execution import training as training_module
from probsa.benchmark.execution.cells import open_experiment
from probsa.core import TextTable, locked
from probsa.errors import BagError, InputError, OutputExists
from probsa.evaluation import read_predictions
from probsa.jobs import Share
from probsa.training import RunConfig, load_checkpoint, train
from probsa.workflow import train_and_report

SMALL = {"embed": 4, "attention_dim": 4}
DIAG = {"name": "abmil-probsa-diag", **SMALL, "samples": 4, "predict_samples": 8}
DSMIL = {"name": "dsmil", "embed": 4}


@pytest.fixture
def folder(tmp_path):
    write_folder(tmp_path / "toy")
    return tmp_path / "toy"


def written(folder, **keys):
    """Write the file of a grid: three short runs on the first fold, changed by the keys."""
    models = [{"name": "abmil", **SMALL}, DIAG, DSMIL]
    return write_grid(folder, **SHORT_RUNS | {"models": models, "splits": [0]} | keys)


def grid_of(folder, **keys):
    return read_grid(written(folder, **keys))


def contents(out):
    """Return the files that must be the same however the cells are computed."""
    names = ("predictions.csv", "threshold.json", "evaluation.json", "cell.json", "split.json")
    found = {
        p.relative_to(out).as_posix(): p.read_bytes().replace(str(out).encode(), b"OUT")
        for p in sorted((out / "cells").rglob("*"))
        if p.name in names
    }
    for p in sorted((out / "cells").rglob("*.h5")):
        found[p.relative_to(out).as_posix()] = p.read_bytes()
    return found


def status(states):
    return {s.cell.method.name: s.status for s in states}


def rows(out):
    return [(r["method"], r["status"], r["reason"]) for r in TextTable.read(out / "cells.csv").rows]


def test_a_cell_is_a_run_folder_with_its_place(folder, tmp_path):
    out = tmp_path / "out"
    lines = (folder / "labels.csv").read_text().splitlines()
    (folder / "labels.csv").write_text(
        "bag,label,fold,group\n" + "".join(f"{line},p{line[:3]}\n" for line in lines[1:])
    )
    grid = grid_of(folder, kl_weight=[0, 0.1])
    states = run_grid(grid, out)
    assert count_states(states) == {"done": 3, "failed": 0, "waiting": 0}
    assert [s.cell.method.name for s in states] == ["abmil", "abmil-probsa-diag λ=0.1", "dsmil"]
    assert rows(out) == [(s.cell.method.name, "done", "") for s in states]
    assert all(s.seconds > 0 for s in states)
    cell = states[1].cell
    run = cell.folder(out)
    assert run == out / "cells/toy/abmil-probsa-diag_kl-0.1/split0-seed0"
    assert json.loads((run / "cell.json").read_text()) == {
        "data": "toy",
        "label": "abmil-probsa-diag",
        "model": "abmil-probsa-diag",
        "arguments": {**SMALL, "samples": 4, "predict_samples": 8},
        "kl_weight": 0.1,
        "split": 0,
        "seed": 0,
        "folds": True,
        "groups": {f"{k:03d}": f"p{k:03d}" for k in range(12)},
    }
    assert {p.name for p in run.glob("[!.]*")} == {
        *("about.json", "cell.json", "checkpoints", "evaluation.json", "features.json"),
        *("metrics.csv", "predictions", "run.yaml", "split.json", "threshold.json"),
    }
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["best.safetensors"]
    held = read_predictions(run / "predictions")
    assert sorted(set(held.parts)) == ["test", "val"] and held.bags
    # the same run by probsa train gives identical predictions, and distances from training
    train_and_report(cell.config, tmp_path / "alone", maps="none")
    alone = TextTable.read(tmp_path / "alone" / "predictions" / "predictions.csv").rows
    assert all(row.pop("ood") and row.pop("ood_distance") for row in alone)
    assert alone == TextTable.read(run / "predictions" / "predictions.csv").rows
    assert read_grid(out / "grid.yaml").cells(out) == grid.cells(out)


@pytest.mark.parametrize(("keep", "left"), [("all", 2), ("none", None)])
def test_checkpoints_are_kept_as_asked(folder, tmp_path, keep, left):
    (state,) = run_grid(grid_of(folder, models=[DSMIL], epochs=1, keep=keep), tmp_path / "out")
    kept = state.cell.folder(tmp_path / "out") / "checkpoints"
    assert (len(list(kept.iterdir())) if kept.is_dir() else None) == left
    assert state.status == "done"
    # a missing checkpoint does not cause another training
    before = contents(tmp_path / "out")
    run_grid(grid_of(folder, models=[DSMIL], epochs=1, keep=keep), tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_what_is_done_is_kept(folder, tmp_path):
    out = tmp_path / "out"
    run_grid(grid_of(folder), out)
    before = {p: p.stat().st_mtime_ns for p in (out / "cells").rglob("*") if p.is_file()}
    # a larger grid leaves every file of the finished cells unchanged
    states = run_grid(grid_of(folder, seeds=2), out)
    assert count_states(states)["done"] == 6
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_a_run_made_by_hand_is_a_cell(folder, tmp_path):
    """Its run file has defaults left out and other threads, and cell.json is missing."""
    out = tmp_path / "out"
    grid = grid_of(folder, models=[DSMIL])
    (cell,) = grid.cells(out)
    given = cell.config.to_dict()
    given["model"] = {"name": "dsmil", "embed": 4}
    given["training"] |= {"threads": None, "workers": 0}
    path = cell.folder(out)
    train_and_report(RunConfig.from_dict(given), path, maps="none")
    before = (path / "evaluation.json").stat().st_mtime_ns
    assert plan(grid, out).states[0].status == "done"
    run_grid(grid, out)
    assert (path / "evaluation.json").stat().st_mtime_ns == before
    assert json.loads((path / "cell.json").read_text())["model"] == "dsmil"
    assert not (path / "checkpoints" / "last.safetensors").exists()
    # a different run in that folder is refused
    with pytest.raises(InputError, match=r"training\.epochs"):
        run_grid(grid_of(folder, models=[DSMIL], epochs=3), out)
    with pytest.raises(InputError, match=r"model\.embed"):
        plan(grid_of(folder, models=[{**DSMIL, "embed": 5}]), out)


def test_an_interrupted_run_goes_on(folder, tmp_path, monkeypatch):
    out = tmp_path / "out"
    grid = grid_of(folder, models=[DSMIL], epochs=4)
    (cell,) = grid.cells(out)
    seen = []

    class Stop(Watch):
        def epoch(self, row):
            seen.append(row["epoch"])
            if row["epoch"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(grid, out, watch=Stop())
    assert plan(grid, out).states[0].status == "waiting"
    last = load_checkpoint(cell.folder(out) / "checkpoints" / "last.safetensors")
    assert last.metadata["progress"]["epoch"] == 2
    monkeypatch.setattr(Stop, "epoch", lambda self, row: seen.append(row["epoch"]))
    run_grid(grid, out, watch=Stop())
    assert seen == [1, 2, 3, 4]
    fresh = tmp_path / "fresh"
    run_grid(grid, fresh)
    assert contents(out) == contents(fresh)


def test_a_run_that_was_killed_as_it_was_predicted_goes_on(folder, tmp_path):
    out = tmp_path / "out"
    grid = grid_of(folder, models=[DSMIL])
    (cell,) = grid.cells(out)
    train(cell.config, cell.folder(out))
    half = temporary_of(cell.folder(out) / "predictions") / "instances"
    half.mkdir(parents=True)
    (half / "000.h5").touch()
    began: list[int] = []

    class Count(Watch):
        def epoch(self, row):
            began.append(row["epoch"])

    assert count_states(run_grid(grid, out, watch=Count()))["done"] == 1
    assert began == [] and not half.parent.exists()


# failures


def test_one_that_fails_does_not_stop_the_others(folder, tmp_path):
    out = tmp_path / "out"
    lost = [{**DSMIL, "label": "lost", "training": {"learning_rate": 1e30}}]
    states = run_grid(grid_of(folder, models=[DSMIL, *lost, DIAG]), out)
    assert count_states(states) == {"done": 2, "failed": 1, "waiting": 0}
    (failed,) = [s for s in states if s.status == "failed"]
    assert failed.cell.method.label == "lost" and "NaN" in failed.reason
    assert rows(out) == [
        ("dsmil", "done", ""),
        ("lost", "failed", failed.reason),
        ("abmil-probsa-diag λ=cyclical", "done", ""),
    ]
    assert not (failed.cell.folder(out) / "cell.json").exists()


def test_what_failed_is_tried_again_unless_it_is_to_be_left(folder, tmp_path, monkeypatch):
    out = tmp_path / "out"
    grid = grid_of(folder, models=[DSMIL, {"name": "abmil", **SMALL}])
    tries = []

    def moody(cell, out):
        tries.append(cell.method.label)
        if cell.method.label == "dsmil" and tries.count("dsmil") < 2:
            raise RuntimeError("the moon\nis full")
        return cells_module.finish(cell, out)

    monkeypatch.setattr(training_module, "finish", moody)
    states = run_grid(grid, out)
    assert status(states) == {"dsmil": "failed", "abmil": "done"}
    assert states[0].reason == "RuntimeError: the moon is full"
    assert status(run_grid(grid, out, retry=False)) == status(states)
    assert plan(grid, out).states[0].reason == "RuntimeError: the moon is full"
    assert tries == ["dsmil", "abmil"]
    assert count_states(run_grid(grid, out))["done"] == 2 and tries[2:] == ["dsmil"]
    assert not list((out / "failures").rglob("*.json"))


def no_key(cell, out):
    raise KeyError("x")


def no_import(cell, out):
    raise ImportError("libtiff.so.6: cannot open shared object file")


def wrong_type(cell, out):
    len(5)


def no_value(cell, out):
    raise ValueError("the moon is full")


@pytest.mark.parametrize("fault", [no_key, no_import, wrong_type, no_value])
def test_a_fault_of_ours_is_named_and_its_record_has_the_traceback(
    folder, tmp_path, monkeypatch, fault
):
    out = tmp_path / "out"
    real = training_module.finish
    monkeypatch.setattr(
        training_module,
        "finish",
        lambda cell, out: (fault if cell.method.label == "dsmil" else real)(cell, out),
    )
    states = run_grid(grid_of(folder, models=[DSMIL, {"name": "abmil", **SMALL}]), out)
    assert status(states) == {"dsmil": "failed", "abmil": "done"}
    (file,) = (out / "failures").rglob("*.json")
    record = json.loads(file.read_text())
    assert f"in {fault.__name__}" in record["traceback"]
    assert (training_module.FAULT in states[0].reason) == (fault is not no_value)
    assert record["reason"] == states[0].reason


def test_the_traceback_of_a_worker_reaches_the_process_that_records_it():
    outcome = training_module.CellOutcome(name="a", reason="KeyError: 'x'", traceback="in no_key")
    assert pickle.loads(pickle.dumps(outcome)) == outcome


def test_an_error_that_is_raised_on_purpose_needs_no_traceback(folder, tmp_path, monkeypatch):
    def refused(cell, out):
        raise BagError("the bag 'x' is empty")

    monkeypatch.setattr(training_module, "finish", refused)
    (state,) = run_grid(grid_of(folder, models=[DSMIL]), tmp_path / "out")
    assert state.reason == "the bag 'x' is empty"
    (file,) = (tmp_path / "out" / "failures").rglob("*.json")
    assert json.loads(file.read_text())["traceback"] == ""


def test_a_full_disk_ends_the_grid(folder, tmp_path, monkeypatch):
    def full(cell, out):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")

    monkeypatch.setattr(training_module, "finish", full)
    with pytest.raises(OSError) as error:
        run_grid(grid_of(folder, models=[DSMIL]), tmp_path / "out")
    assert error.value.errno == errno.ENOSPC
    assert plan(grid_of(folder, models=[DSMIL]), tmp_path / "out").states[0].status == "waiting"


def test_a_method_is_not_judged_on_fewer_bags(folder, tmp_path, monkeypatch):
    """The file of a held-out bag is damaged during the run."""
    out = tmp_path / "out"
    grid = grid_of(folder, models=[DSMIL], splits=[1])
    real = training_module.finish

    def damaged(cell, out):
        (folder / "features" / "002.h5").write_bytes(b"nothing")
        real(cell, out)

    monkeypatch.setattr(training_module, "finish", damaged)
    (state,) = run_grid(grid, out)
    assert state.status == "failed" and "'002'" in state.reason
    # the next call notices it before it trains anything
    with pytest.raises(BagError, match=r"002"):
        run_grid(grid, out)


def test_a_folder_of_something_else_is_left_alone(folder, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(OutputExists):
        run_grid(grid_of(folder), tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["letter.txt"]


# several processes


@pytest.mark.slow
def test_two_processes_do_what_one_does(folder, tmp_path, monkeypatch):
    fork_workers(monkeypatch)
    grid = grid_of(folder)
    seen: list[int] = []

    class Count(Watch):
        def settled(self, cells):
            seen.append(cells)

    assert count_states(run_grid(grid, tmp_path / "two", workers=2, watch=Count()))["done"] == 3
    assert sorted(seen) == seen and seen[-1] == 3
    run_grid(grid, tmp_path / "one")
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


GRID = """\
import sys
from pathlib import Path
from probsa.benchmark import read_grid, run_grid
run_grid(read_grid(Path(sys.argv[1])), Path(sys.argv[2]))
"""


def test_two_runs_of_one_grid_give_the_files_of_one(folder, tmp_path):
    """Both begin with the same cell: the one that comes second does it last."""
    path = written(folder, models=[DSMIL, DIAG], splits=[0, 1], epochs=10, keep="none")
    both = [forks.begin(GRID, path, tmp_path / "two") for _ in range(2)]
    for process in both:
        assert process.wait() == 0, process.errors()
    run_grid(read_grid(path), tmp_path / "one")
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert {row[1] for row in rows(tmp_path / "two")} == {"done"}
    assert not list((tmp_path / "two").rglob("*.safetensors"))


def test_a_cell_that_another_run_is_at_is_left_to_it(folder, tmp_path):
    out = tmp_path / "out"
    grid = grid_of(folder, models=[DSMIL, {"name": "abmil", **SMALL}])
    theirs, ours = grid.cells(out)
    began: list[str] = []
    open_experiment(out)
    lock = locked(theirs.folder(out))

    class Theirs(Watch):
        """Lets the other run finish its cell while this one trains another."""

        def begin(self, cell):
            began.append(cell.name)
            train_and_report(theirs.config, theirs.folder(out), maps="none")
            lock.__exit__(None, None, None)

    assert lock.__enter__()
    states = run_grid(grid, out, watch=Theirs())
    assert count_states(states)["done"] == 2
    assert began == [ours.name]


def test_shares_of_a_grid_make_the_whole(folder, tmp_path):
    grid = grid_of(folder)
    for k in range(2):
        states = run_grid(grid, tmp_path / "two", share=Share(k, 2))
        assert count_states(states) == {"done": 2 - k, "failed": 0, "waiting": 0}
        assert [row[1] for row in rows(tmp_path / "two")].count("waiting") == 1 - k
    run_grid(grid, tmp_path / "one")
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


# killed processes


def killed_when(there, grid, out):
    """Run the grid in another process and kill it as soon as `there()` is true."""
    process = forks.begin(GRID, grid, out)
    wait_for(lambda: there() or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, process.errors()


def test_a_grid_that_is_killed_twice_ends_the_same(folder, tmp_path):
    """First during the training of a run; then during the prediction of another."""
    out = tmp_path / "out"
    keys = {"models": [DSMIL, DIAG], "kl_weight": [0.1, 1], "splits": [0], "epochs": 30}
    path = written(folder, **keys)
    grid = read_grid(path)
    alone, *both = [c.folder(out) for c in grid.cells(out)]

    def epochs():
        file = alone / "metrics.csv"
        return file.is_file() and file.read_text().count("\n") > 3

    killed_when(epochs, path, out)
    assert not (alone / "evaluation.json").exists()
    killed_when(lambda: (both[0] / "threshold.json").exists(), path, out)
    assert not any((p / "evaluation.json").exists() for p in both)
    assert count_states(run_grid(grid, out))["done"] == 3
    run_grid(grid, tmp_path / "fresh")
    assert contents(out) == contents(tmp_path / "fresh")
    assert not [p for p in out.rglob("*") if p.suffix == ".tmp"]


def test_what_the_killed_left_goes(folder, tmp_path):
    """Half-written files of the experiment and of its cells are removed."""
    out = tmp_path / "out"
    models = [{"name": "abmil", **SMALL}, DIAG]
    grid = grid_of(folder, models=models, kl_weight=0.1, epochs=1, splits=[0, 1, 2])
    run_grid(grid, out)
    write_report(out)
    before = {p.relative_to(out) for p in out.rglob("*")}
    first, second, *_ = grid.cells(out)
    (first.folder(out) / "cell.json").unlink()
    half = [
        *(out / n for n in ("grid.yaml", "notes.json", "cells.csv", "copies/toy.json")),
        *(out / n for n in ("tables/folds_toy.md", "figures/ranks.png")),
        first.folder(out) / "cell.json",
        out / "failures" / f"{second.name}.json",
    ]
    for path in half:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary_of(path).touch()
    run_grid(grid, out)
    write_report(out)
    files = {p.relative_to(out) for p in out.rglob("*") if p.is_file()}
    assert files == {p for p in before if (out / p).is_file()}


# Slurm


@pytest.mark.slow
@pytest.mark.nightly  # tests/jobs/test_slurm_real.py shares a grid among jobs of Slurm itself
def test_jobs_of_a_cluster_share_the_grid(folder, tmp_path, monkeypatch):
    """submitit's local executor replaces Slurm: it runs two jobs as processes."""
    pytest.importorskip("submitit")
    from probsa.jobs import slurm

    monkeypatch.setattr(slurm, "POLL", 0.05)
    monkeypatch.setenv("PYTHONPATH", forks.PATHS)
    grid = grid_of(folder, slurm={"cluster": "local", "timeout_min": 5})
    out = tmp_path / "out"
    notes: list[str] = []

    class Noting(Watch):
        def note(self, text):
            notes.append(text)

    states = run_grid(grid, out, engine="slurm", workers=2, watch=Noting())
    assert count_states(states) == {"done": 3, "failed": 0, "waiting": 0}
    assert len(notes) == 1
    assert len(list((out / "slurm").iterdir())) >= 1
    run_grid(grid_of(folder), tmp_path / "one")
    assert contents(out) == contents(tmp_path / "one")


def test_cells_may_have_members_and_another_rule(folder, tmp_path):
    """Each is a run of its own, with members; a rule that cannot is refused."""
    out = tmp_path / "out"
    grid = grid_of(folder, models=["abmil", DSMIL], epochs=2, members=2, select="last")
    states = run_grid(grid, out)
    assert count_states(states) == {"done": 2, "failed": 0, "waiting": 0}
    for state in states:
        run = state.cell.folder(out)
        assert not (run / "checkpoints").exists() and state.seconds > 0
        for k in range(2):
            kept = [p.name for p in (run / f"members/{k}/checkpoints").iterdir()]
            assert kept == ["best.safetensors"]
        assert read_predictions(run / "predictions").std_between is not None
    before = contents(out)
    run_grid(grid, out)
    assert contents(out) == before
    with pytest.raises(InputError, match="ema-nll"):
        grid_of(folder, models=["gtp"], select="ema-nll")
    with pytest.raises(InputError, match=r"\[0, 2\]"):
        check_grid(grid_of(folder, models=["abmil"], members=2, seeds=2), tmp_path / "new")
    check_grid(grid_of(folder, models=["abmil"], members=2, seeds=[0, 2]), tmp_path / "new")
