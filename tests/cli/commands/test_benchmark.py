"""probsa benchmark: its output, the files that it writes, and its exit status."""

import json

import pytest
import yaml
from PIL import Image
from support.stored import write_folder

from probsa.benchmark import ReportFiles
from probsa.cli import main
from probsa.core import TextTable

MODELS = [{"name": "abmil", "embed": 4}, {"name": "dsmil", "embed": 4}]


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """Write a grid of two cells to the current folder."""
    write_folder(tmp_path / "toy")
    keys = {"models": MODELS, "splits": [0], "epochs": 1, "device": "cpu", "threads": 1}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(keys))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def reported(monkeypatch):
    """Replace the report; return the (folder, bags, methods, data sets with slides) asked for."""
    asked = []

    def written(out, *, bags, methods, sources, told):
        asked.append((str(out), bags, methods, list(sources)))
        told("tables")
        return ReportFiles(
            files=(out / "tables" / "x.md",),
            missing=(("a map", "no coordinates"),),
        )

    monkeypatch.setattr("probsa.benchmark.write_report", written)
    return asked


def run(*arguments):
    return main(["benchmark", "small.yaml", *arguments])


def test_a_dry_run_lists_what_would_be_done(grid, capsys):
    assert run("--data", "toy", "--dry-run", "--splits", "[0, 1]", "--seeds", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "toy/abmil/split0-seed0" in lines[0] and len(lines) == 8 + 2
    assert not (grid / "small").exists()
    assert run("--data", "toy", "--dry-run", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["out"] == "small"
    assert answer["counts"] == {"done": 0, "failed": 0, "waiting": 2}
    cells = [c["cell"] for c in answer["cells"]]
    assert cells == ["toy/abmil/split0-seed0", "toy/dsmil/split0-seed0"]


def test_a_grid_is_run_and_reported(grid, capsys, reported):
    (grid / "pictures").mkdir()
    Image.new("RGB", (64, 64)).save(grid / "pictures" / "000.png")
    assert (
        run(
            "--data",
            "own=toy",
            "--epochs",
            "2",
            "--bags",
            "000,001",
            "--methods",
            "dsmil",
            "--slides",
            "own=pictures",
        )
        == 0
    )
    assert "small/tables/x.md" in capsys.readouterr().out
    assert reported == [("small", ["000", "001"], ["dsmil"], ["own"])]
    assert len(TextTable.read(grid / "small/cells/own/dsmil/split0-seed0/metrics.csv").rows) == 2
    # the second call has nothing left to do
    assert run("--data", "own=toy", "--epochs", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "out": "small",
        "counts": {"done": 2, "failed": 0, "waiting": 0},
        "failed": [],
        "files": ["small/tables/x.md"],
        "missing": [{"figure": "a map", "reason": "no coordinates"}],
    }
    assert run("--tables-only") == 0
    assert main(["benchmark", "--tables-only", "--out", "small"]) == 0  # works without the grid
    assert "small/tables/x.md" in capsys.readouterr().out


def test_what_fails_is_listed_and_the_exit_status_says_so(grid, capsys, reported):
    models = [*MODELS, {**MODELS[1], "label": "lost", "training": {"learning_rate": 1e30}}]
    flags = ["--models", yaml.safe_dump(models, default_flow_style=True), "--epochs", "2"]
    assert run("--data", "toy", "--out", "x", *flags) == 1
    out, err = capsys.readouterr()
    assert "toy/lost/split0-seed0" in out and "toy/lost/split0-seed0" in err
    assert reported == [("x", None, None, [])]  # the finished cells are reported
    assert run("--data", "toy", "--out", "x", *flags, "--no-retry", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["counts"] == {"done": 2, "failed": 1, "waiting": 0}
    assert [f["cell"] for f in answer["failed"]] == ["toy/lost/split0-seed0"]
    # without a finished cell there is no report
    assert (
        run(
            "--data",
            "toy",
            "--out",
            "y",
            "--models",
            "dsmil",
            "--learning_rate",
            "1e30",
            "--epochs",
            "2",
        )
        == 1
    )
    assert len(reported) == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("", "probsa benchmark"),
        ("none.yaml", "none.yaml"),
        ("small.yaml", "--data DIR"),
        ("small.yaml --data", "--data"),
        ("small.yaml --data=toy --seed 3", "seed"),
        ("small.yaml --data=toy --epoch 3", "'epochs'"),
        ("small.yaml --data=toy --engine dask", "'dask'"),
        ("small.yaml --data=toy --engine ray", "--engine slurm"),
        ("small.yaml --data=toy --shard 2/2", "'2/2'"),
        ("small.yaml --data=toy --workers x", "--workers"),
        ("small.yaml --data=toy --workers 0", "--workers"),
        ("small.yaml --data=toy --models abmill", "'abmil'"),
        ("small.yaml --data=toy --seedz 3", "'seeds'"),
        ("small.yaml --data=toy toy", "'toy'"),
        ("small.yaml --data=toy --bags b0,x", "--bags"),
        ("small.yaml --data=toy --methods dsmill", "'dsmil'"),
        ("small.yaml --data=toy --slides toi=toy", "'toy'"),
        ("small.yaml --data=toy --slides nowhere", "nowhere"),
        ("small.yaml --data=toy --dry-run --out toy", "toy"),
        ("small.yaml --data=toy --dry-run --out small.yaml", "small.yaml"),
        ("small.yaml --data=toy --out small.yaml/x", "small.yaml"),
        ("small.yaml --tables-only", "small"),
    ],
)
def test_wrong_use_is_refused_by_name(grid, capsys, arguments, named):
    assert main(["benchmark", *arguments.split(), "--json"]) == 2
    assert named in json.loads(capsys.readouterr().out)["error"]
    assert not (grid / "small").exists()


def test_a_bag_that_is_not_tested_has_no_map(grid, capsys):
    rows = TextTable.read(grid / "toy" / "labels.csv").rows
    parts = ["train"] * (len(rows) - 2) + ["test"] * 2
    lines = [f"{r['bag']},{r['label']},{p}" for r, p in zip(rows, parts, strict=True)]
    (grid / "toy" / "labels.csv").write_text("\n".join(["bag,label,split", *lines, ""]))
    assert run("--data", "toy", "--bags", rows[0]["bag"], "--dry-run") == 2
    tested = ", ".join(r["bag"] for r in rows[-2:])
    printed = capsys.readouterr().err
    assert rows[0]["bag"] in printed and tested in printed


def test_a_folder_that_cannot_be_written_is_refused_at_once(grid, capsys, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, _: str(path) != str(grid))
    assert run("--data", "toy", "--dry-run", "--out", "new") == 2
    assert str(grid) in capsys.readouterr().err


def test_tables_alone_know_the_grids_name(grid, reported):
    (grid / "named.yaml").write_text("name: mine\n" + (grid / "small.yaml").read_text())
    (grid / "mine" / "cells").mkdir(parents=True)
    assert main(["benchmark", "named.yaml", "--tables-only"]) == 0
    assert reported == [("mine", None, None, [])]


def test_help_names_every_key_of_a_grid(capsys):
    from probsa.benchmark.grid.grid import GRID_KEYS

    assert main(["benchmark", "--help"]) == 0
    text = capsys.readouterr().out
    for key in set(GRID_KEYS) - {"name"}:
        assert f"  {key}: " in text or f"--{key.replace('_', '-')}" in text
