"""Wrong paths, tables, names of models and keys are refused before PyTorch is imported.

Each command is started with each kind of wrong input in a fresh process, which reports what was
imported, and how much of a processor was used.
"""

import json
import re
import subprocess
import sys

import pytest
from support.made_slides import write_cohort
from support.stored import write_folder

from probsa.cli.entry import COMMANDS, main
from probsa.features import known_names as known_encoders
from probsa.features import names as encoders
from probsa.models import (
    arguments,
    catalogue_rows,
    known_arguments,
    known_names,
    listed_models,
    look_up,
    names,
)

HEAVY = ("torch", "sklearn", "matplotlib", "scipy.stats", "timm", "transformers")
PROGRAM = f"""
import contextlib, io, json, sys, time
from probsa.cli.entry import main
report = []
for arguments in json.loads(sys.argv[1]):
    before = time.process_time()
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        status = main(arguments)
    heavy = [name for name in {HEAVY!r} if name in sys.modules]
    report.append([arguments, status, err.getvalue(), heavy, time.process_time() - before])
print(json.dumps(report))
"""


def outcomes(cases, cwd):
    """Run commands one after another in one new process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(cases)],
        capture_output=True, text=True, check=True, cwd=cwd,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Make a folder with good and bad inputs of every kind; return it."""
    folder = tmp_path_factory.mktemp("refusals")
    write_folder(folder / "data")
    flags = "--model abmil --embed 8 --test-fold 0 --epochs 1 --tensorboard false --maps none"
    data = [
        "--features",
        str(folder / "data/features"),
        "--labels",
        str(folder / "data/labels.csv"),
    ]
    assert (
        main(["train", *data, "--out", str(folder / "run"), "--device", "cpu", *flags.split()]) == 0
    )
    (folder / "empty").mkdir()
    (folder / "text.txt").write_text("no table")
    (folder / "broken.csv").write_bytes(b"bag,label\n\xff\xfe\x00\x01,1\n")
    (folder / "other.csv").write_text("name,value\na,1\n")
    (folder / "strangers.csv").write_text("bag,label\nx,0\ny,1\n")
    (folder / "cell.csv").write_text("bag,label\n000,0\n001,tumour\n")
    (folder / "class.csv").write_text("bag,label\n000,0\n001,7\n")
    (folder / "twice.csv").write_text("bag,label\n000,0\n000,1\n")
    (folder / "no_label.csv").write_text("bag,lable\n000,0\n001,1\n")
    (folder / "bad.yaml").write_text("features: [\n")
    (folder / "key.yaml").write_text("features: data/features\nlabels: data/labels.csv\nepoch: 3\n")
    (folder / "model.yaml").write_text(
        "features: data/features\nlabels: data/labels.csv\nmodel: abmill\n"
    )
    (folder / "grid.yaml").write_text(
        "models: [abmill]\ndata: {features: data/features, labels: data/labels.csv}\n"
    )
    (folder / "argument.yaml").write_text(
        "models: [{name: abmil, hedas: 3}]\n"
        "data: {features: data/features, labels: data/labels.csv}\n"
    )
    (folder / "lost.yaml").write_text(
        "models: [abmil]\ndata: {features: gone, labels: data/labels.csv}\n"
    )
    write_cohort(folder / "slides", slides=1)
    (folder / "no_table").mkdir()
    (folder / "no_table" / "predictions.csv").write_text("bag,part\n000,test\n")
    (folder / "no_weights").mkdir()
    (folder / "no_weights" / "run.yaml").write_text((folder / "run" / "run.yaml").read_text())
    return folder


TRAIN = "train --features data/features --labels data/labels.csv --out new"
PREDICT = "predict run --features data/features --out new"
GOOD = "run/predictions"
CASES = {
    "train": [
        "train --features gone --labels data/labels.csv --out new",
        "train --features empty --labels data/labels.csv --out new",
        "train --features text.txt --labels data/labels.csv --out new",
        "train --features data/features --labels gone.csv --out new",
        "train --features data/features --labels empty --out new",
        "train --features data/features --labels broken.csv --out new",
        "train --features data/features --labels other.csv --out new",
        "train --features data/features --labels no_label.csv --out new",
        "train --features data/features --labels strangers.csv --out new",
        "train --features data/features --labels class.csv --classes a,b --out new",
        "train --features data/features --labels twice.csv --out new",
        "train --features data/features --out new",
        "train --features data/features --labels data/labels.csv",
        "train --features data/features --labels data/labels.csv --out run",
        "train --features data/features --labels data/labels.csv --out data",
        "train --out empty --resume",
        "train --out gone --resume",
        "train --out data --resume",
        "train --config gone.yaml --out new",
        "train --config nonsense --out new",
        "train --config bad.yaml --out new",
        "train --config key.yaml --out new",
        "train --config model.yaml --out new",
        f"{TRAIN} --model abmill",
        f"{TRAIN} --epoch 3",
        f"{TRAIN} --epochs many",
        f"{TRAIN} --epochs -1",
        f"{TRAIN} --model abmil --hedas 3",
        f"{TRAIN} --model abmil --training.epoch 3",
        f"{TRAIN} --model abmil --samples 3",
        f"{TRAIN} --maps some",
        f"{TRAIN} --task binray",
        f"{TRAIN} --split gone.csv",
        f"{TRAIN} --instance-labels gone",
        f"{TRAIN} --covariates gone.csv --numeric age",
        f"{TRAIN} --covariates other.csv --numeric age",
        f"{TRAIN} --target lable",
        f"{TRAIN} --feature-set none",
    ],
    "predict": [
        "predict gone --features data/features --out new",
        "predict empty --features data/features --out new",
        "predict no_weights --features data/features --out new",
        "predict run/predictions --features data/features --out new",
        "predict run --features gone --out new",
        "predict run --features empty --out new",
        "predict run --features slides --out new",
        "predict run --features data/features --out run/predictions",
        "predict run --features data/features --out data --overwrite",
        f"{PREDICT} --labels gone.csv",
        f"{PREDICT} --labels broken.csv",
        f"{PREDICT} --labels other.csv",
        f"{PREDICT} --labels cell.csv",
        f"{PREDICT} --labels class.csv",
        f"{PREDICT} --labels twice.csv",
        f"{PREDICT} --covariates gone.csv",
        f"{PREDICT} --checkpoint worst",
        f"{PREDICT} --device gpu",
        f"{PREDICT} --chekpoint best",
    ],
    "evaluate": [
        "evaluate gone",
        "evaluate empty",
        "evaluate text.txt",
        "evaluate no_table",
        f"evaluate {GOOD} --labels gone.csv",
        f"evaluate {GOOD} --labels broken.csv",
        f"evaluate {GOOD} --labels other.csv",
        f"evaluate {GOOD} --labels cell.csv",
        f"evaluate {GOOD} --labels class.csv",
        f"evaluate {GOOD} --labels twice.csv",
        "evaluate run --labels cell.csv",
        f"evaluate {GOOD} --labels data/labels.csv --classes a,b,c",
        f"evaluate {GOOD} --part tset",
        f"evaluate {GOOD} --bootstrap 3",
        f"evaluate {GOOD} --coverage 2",
        f"evaluate {GOOD} --coverage 0.9 --calibration gone",
        f"evaluate {GOOD} --calibration gone",
    ],
    "sets": [
        "sets gone --out new.csv --coverage 0.9",
        "sets empty --out new.csv --coverage 0.9",
        f"sets {GOOD} --out new.csv",
        f"sets {GOOD} --out data/labels.csv --coverage 0.9",
        f"sets {GOOD} --out new.csv --coverage 0.9 --labels gone.csv",
        f"sets {GOOD} --out new.csv --coverage 0.9 --labels cell.csv",
        f"sets {GOOD} --out new.csv --coverage 0.9 --labels class.csv",
        f"sets {GOOD} --out new.csv --coverage 0.9 --calibration gone",
    ],
    "map": [
        "map gone --out new",
        "map empty --out new",
        "map no_table --out new",
        f"map {GOOD} --out new --bag nobody",
        f"map {GOOD} --out new --slides gone",
        f"map {GOOD} --out new --slides slides --slide-mpp gone.csv",
        f"map {GOOD} --out new --anndata --features gone",
        f"map {GOOD} --out new --anndata --features empty",
        f"map {GOOD} --out new --score doubt",
        f"map {GOOD} --out new --no-png",
        f"map {GOOD} --out text.txt",
    ],
    "view": [
        "view gone --export new",
        "view empty --export new",
        "view data --export new",
        f"view {GOOD} --export new --slides gone",
        f"view {GOOD} --export new --against gone",
        f"view {GOOD} --export new --against empty",
        f"view {GOOD} --export data",
        f"view {GOOD} --port many",
    ],
    "benchmark": [
        "benchmark gone.yaml",
        "benchmark nonsense",
        "benchmark bad.yaml",
        "benchmark grid.yaml",
        "benchmark argument.yaml",
        "benchmark lost.yaml",
        "benchmark standins --data gone",
        "benchmark standins --data data --modles abmil",
        "benchmark standins --data data --models abmill",
        "benchmark standins --data data --epoch 3",
        "benchmark --tables-only --out empty",
        "benchmark",
    ],
    "run": [
        "run gone --model run --out new",
        "run empty --model run --out new",
        "run slides --model gone --out new",
        "run slides --model empty --out new",
        "run slides --model run --out new --encoder resnet5",
        "run slides --model run --out new --labels gone.csv",
        "run slides --model run --out new --labels cell.csv",
        "run slides --model run --out new --slide-mpp gone.csv",
    ],
    "patch": [
        "patch gone --out new",
        "patch empty --out new",
        "patch data --out new",
        "patch slides --out new --preset nonsense",
        "patch slides --out new --contours gone",
        "patch slides --out new --slide-mpp gone.csv",
        "patch slides --out new --slide-mpp other.csv",
        "patch slides --out new --patch-size many",
    ],
    "extract": [
        "extract gone",
        "extract empty",
        "extract work --encoder resnet5",
        "extract work --set nonsense",
        "extract work --weights gone.pth",
        "extract work --slides gone",
        "extract work --slides empty",
        "extract work --windows brian",
    ],
    "convert": [
        "convert gone --from clam --out new",
        "convert empty --from clam --out new",
        "convert data/features --from clma --out new",
        "convert data/features --from trident --out new --labels gone.csv",
        "convert data/features --from trident --out new --labels other.csv",
        "convert data/features --from trident --out new --slide-mpp gone.csv",
        "convert data/features --from trident --out new --feature-set none",
    ],
    "dataset": [
        "dataset camelyon16 gone --out new",
        "dataset camelyno16 data --out new",
        "dataset table --out new",
        "dataset table data --out new --labels gone.csv",
        "dataset table data --out new --features gone --labels data/labels.csv",
        "dataset table data --out new --instance-labels gone --labels data/labels.csv",
        "dataset table data --out new --grades",
    ],
    "info": ["info gone", "info empty", "info text.txt", "info slides --slide-mpp gone.csv"],
    "models": ["models abmill", "models --markdwon"],
    "encoders": ["encoders resnet5"],
    "doctor": ["doctor now"],
    "demo": ["demo --out text.txt"],
    "other": ["trian", "verify work", "--nonsense"],
}  # fmt: skip


def test_every_command_is_among_the_cases():
    assert {*CASES} == {*COMMANDS, "other"}


@pytest.mark.parametrize("command", CASES)
def test_wrong_inputs_are_refused_without_pytorch(place, command):
    if command == "extract" and not (place / "work").exists():
        assert main(["patch", str(place / "slides"), "--out", str(place / "work")]) == 0
    before = sorted(place.rglob("*"))
    for line, status, words, heavy, _ in outcomes([c.split() for c in CASES[command]], place):
        assert (status, heavy) == (2, []), (line, words)
        assert words.startswith("probsa: error: ") and "Traceback" not in words, line
    assert sorted(place.rglob("*")) == before


def test_help_and_the_list_of_models_need_no_pytorch(place):
    cases = [["--help"], ["models"], ["models", "--json"], *([c, "--help"] for c in COMMANDS)]
    for line, status, words, heavy, _ in outcomes(cases, place):
        assert (status, heavy) == (0, []), (line, words)


@pytest.mark.parametrize(
    "command", ["--help", "models", CASES["train"][0], CASES["train"][7], f"{TRAIN} --epoch 3",
                "evaluate no_table", "benchmark grid.yaml", "run empty --model run --out new"],
)  # fmt: skip
def test_a_refusal_takes_less_of_a_processor_than_pandas_twice(place, command):
    """Seconds differ between machines: the measure is a process that only imports pandas."""
    code = "import time, numpy, pandas; print(time.process_time())"
    measure = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    timed = (
        "import sys, time, atexit; from probsa.cli.entry import main; status = main(sys.argv[1:]); "
        "print(); print(time.process_time())"
    )
    done = subprocess.run(
        [sys.executable, "-c", timed, *command.split()], capture_output=True, text=True, cwd=place
    )
    assert float(done.stdout.split()[-1]) < 2 * float(measure.stdout) + 0.5


def test_names_and_arguments_in_the_source_are_those_of_the_registry(monkeypatch):
    """What is read from the source is compared with what the imported classes say."""
    registered = {name: frozenset(arguments(name)) for name in names()}
    described = catalogue_rows()
    known = encoders()
    listed = listed_models()
    monkeypatch.delitem(sys.modules, "probsa.models._registry")
    monkeypatch.delitem(sys.modules, "probsa.features._registry")
    assert {name: known_arguments(name) for name in known_names()} == registered
    assert catalogue_rows() == described
    assert listed_models() == listed
    assert known_encoders() == known
    assert "probsa.models._registry" not in sys.modules  # the source told it all
    assert "probsa.features._registry" not in sys.modules


def test_models_lists_the_summaries_of_the_classes(capsys):
    assert main(["models"]) == 0
    lines = capsys.readouterr().out
    for name in names():
        assert re.search(rf"^{re.escape(name)} +{re.escape(look_up(name).summary)}$", lines, re.M)
