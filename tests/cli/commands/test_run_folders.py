"""A run folder stands for its predictions, in every command and function that reads them."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.made_predictions import scan
from support.refusals import refused

from probsa.cli import main
from probsa.errors import TableError
from probsa.evaluation import evaluate, read_predictions, write_predictions
from probsa.exports import ExportSettings, export_folder
from probsa.maps import render_folder
from probsa.view import ViewData

RUN = "data: {features: features, labels: labels.csv}\nmodel: {name: abmil}\n"
LABELS = {f"b{k:02}": k % 2 for k in range(24)}


@pytest.fixture
def runs(tmp_path):
    """Three folders with predictions inside: of a run, of the same bags, and of others."""
    generator = np.random.default_rng(0)
    for name in ("a", "b", "c"):
        bags = []
        labels = {f"other {bag}": y for bag, y in LABELS.items()} if name == "c" else LABELS
        for bag, label in labels.items():
            probability = (0.3 + 0.4 * label + 0.2 * generator.random(),)
            bags.append(scan(bag, generator.normal(size=5), probability=probability))
        write_predictions(
            tmp_path / name / "predictions",
            bags,
            labels=labels,
            parts={bag: "val" if int(bag[-2:]) < 12 else "test" for bag in labels},
            classes=("0", "1"),
            threshold=0.5,
            metadata={"model": "abmil"},
        )
    (tmp_path / "a" / "run.yaml").write_text(RUN)
    return tmp_path


COMMANDS = {
    "evaluate": "evaluate {a} --bootstrap 0 --json",
    "calibration": "evaluate {a} --bootstrap 0 --coverage 0.5 --calibration {c} --json",
    "sets": "sets {a} --coverage 0.5 --out {out}.csv --json",
    "map": "map {a} --out {out} --bag b13 --json",
    "view": "view {a} --against {b} --export {out} --json",
}


def answer(command: str, capsys: pytest.CaptureFixture[str], **places: Path) -> object:
    code = main([word.format(**places) for word in command.split()])
    out, err = capsys.readouterr()
    assert code == 0, err
    document = json.loads(out)
    document.pop("bytes", None)  # the page of a run names the run
    text = json.dumps(document)
    return json.loads(text.replace(str(places["out"]), "OUT").replace("/predictions", ""))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_folder_is_read_as_its_predictions(runs, capsys, command):
    folders = {name: runs / name for name in "abc"}
    inside = {name: runs / name / "predictions" for name in "abc"}
    whole = answer(COMMANDS[command], capsys, **folders, out=runs / "of-run")
    direct = answer(COMMANDS[command], capsys, **inside, out=runs / "direct")
    assert whole == direct


@pytest.mark.parametrize("name", ["a", "b"])
def test_functions_read_a_run_folder_too(runs, name):
    folder = runs / name
    inside = runs / name / "predictions"
    assert read_predictions(folder).folder == inside
    assert evaluate(folder, bootstrap=0).folder == inside
    assert render_folder(folder, runs / "maps", bags=["b13"]) == []
    export = export_folder(folder, runs / "files", ExportSettings(anndata="one-file"))
    assert export.failures == []
    assert len(ViewData(folder, against=runs / "a").rows) == len(LABELS)


def test_a_run_without_predictions_is_refused_by_name(tmp_path):
    (tmp_path / "run.yaml").write_text("model: {name: abmil}\n")
    refused(TableError, "predictions.csv", read_predictions, tmp_path)
    (tmp_path / "predictions").mkdir()
    refused(TableError, str(tmp_path / "predictions"), read_predictions, tmp_path)
