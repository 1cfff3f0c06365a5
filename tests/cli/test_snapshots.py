"""What each command prints is what its file in `snapshots/` holds: help, output and refusals.

`python -m pytest tests/cli/test_snapshots.py --update-snapshots` writes the files anew; what has
changed is read in the diff.
"""

import re
import sys
from pathlib import Path

import pytest
from support.foreign import slide as foreign_slide
from support.foreign import trident
from support.made_predictions import scan
from support.made_slides import tissue, write_slide
from support.refused_commands import CASES, write_place
from support.subjects import command

import probsa
from probsa.cli import terminal
from probsa.cli.doctor import Check
from probsa.cli.entry import COMMANDS
from probsa.evaluation import write_predictions

SNAPSHOTS = Path(__file__).with_name("snapshots")
PROJECT = str(Path(__file__).parents[2])
TRAINED = "--model abmil --embed 8 --epochs 2 --test-fold 0 --device cpu --tensorboard false"
FLOW = (
    "info slides/case0.tiff",
    "patch slides --out work --patch-size 128 --workers 1",
    "extract work --encoder handcrafted --readers 0",
    f"train --features work --labels labels.csv --out run {TRAINED} --maps none",
    "predict run --features work --out new --labels labels.csv",
    "evaluate predictions --bootstrap 50",
    "evaluate predictions --bootstrap 50 --full",
    "sets predictions --out sets.csv --coverage 0.8",
    "map predictions --bag b13 --out maps",
    "view predictions --export page",
    "run slides --model run --out ran --readers 0",
    "convert trident --from trident --out converted",
    "folds cohort.csv --out folds.csv --folds 3 --sites apart",
    "dataset table --features work --labels labels.csv --out set",
    "benchmark grid.yaml --data set --dry-run",
    "models",
    "models abmil-probsa-diag",
    "encoders handcrafted",
    "doctor",
)
"""Commands with their normal output, in the order in which one reads what another wrote."""
MASKS = (
    (re.escape(probsa.__version__), "VERSION"),
    (r"\d+:\d\d:\d\d(\.\d+)?", "TIME"),
    (r"[\d.]+ (s|MB|GB)\b", r"N \1"),
)
MEASURED = ("train", "predict", "run")
"""Commands whose decimals depend on the build of PyTorch."""


pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the snapshots have the paths and the numbers of Linux"
)


def transcript(line: str) -> str:
    """Run a command in the current folder; return what it printed, without what may differ."""
    outcome = command(*line.split())
    text = outcome.text.replace(str(Path.cwd()), "FOLDER").replace(PROJECT, "PROJECT")
    for pattern, mask in MASKS:
        text = re.sub(pattern, mask, text)
    if line.startswith(MEASURED):
        text = re.sub(r"-?\d*\.\d+(e-?\d+)?", "N", text)
    status = f"[exit status {outcome.status}]\n" if outcome.status else ""
    return f"$ probsa {line}\n{text.rstrip()}\n{status}"


def write_inputs(folder: Path) -> None:
    """Write slides, labels, a grid, predictions, and the features of another program."""
    for k in range(6):
        image = tissue(1024, 512, boxes=[(100, 50, 300 + 90 * k, 400)], seed=k)
        write_slide(folder / "slides" / f"case{k}.tiff", image)
    rows = "".join(f"case{k},{k % 2},{k // 2}\n" for k in range(6))
    (folder / "labels.csv").write_text(f"bag,label,fold\n{rows}")
    slides = "".join(f"TCGA-A{k // 8}-{k // 2:04}-0{k % 2}Z,{k // 2 % 2}\n" for k in range(48))
    (folder / "cohort.csv").write_text(f"bag,label\n{slides}")
    grid = "{models: [{name: abmil, embed: 4}], splits: [0], epochs: 1, device: cpu, threads: 1}\n"
    (folder / "grid.yaml").write_text(grid)
    trident(folder / "trident", foreign_slide("s0"), foreign_slide("s1", seed=1))
    labels = {f"b{k:02}": k % 2 for k in range(24)}
    bags = [
        scan(bag, [0.1, 0.2, label, 0.3], [0, 0, label, 0], probability=(0.2 + 0.5 * label,))
        for bag, label in labels.items()
    ]
    write_predictions(
        folder / "predictions",
        bags,
        labels=labels,
        classes=("0", "1"),
        threshold=0.5,
        parts={bag: "val" if int(bag[1:]) < 12 else "test" for bag in labels},
        metadata={"model": "abmil"},
    )


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory):
    """Run every command line; return the text of each command."""
    made = tmp_path_factory.mktemp("made")
    refused = tmp_path_factory.mktemp("refused")
    write_inputs(made)
    write_place(refused)
    checks = [Check(area="core", name="probsa", status="works", detail="installed")]
    texts = {name: [] for name in COMMANDS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        patch.setenv("NO_COLOR", "1")
        for console in (terminal.OUT, terminal.ERR):  # so wide that no path is broken
            patch.setattr(console, "width", 200)
        patch.setattr("probsa.cli.doctor.examine", lambda: iter(checks))
        patch.chdir(made)
        for name in COMMANDS:
            texts[name].append(transcript(f"{name} --help"))
        for line in FLOW:
            texts[line.split()[0]].append(transcript(line))
        patch.chdir(refused)
        for name in COMMANDS:
            texts[name] += map(transcript, CASES[name])
    return {name: "\n".join(parts) for name, parts in texts.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_what_its_snapshot_holds(transcripts, name, request):
    file = SNAPSHOTS / f"{name}.txt"
    if request.config.getoption("update_snapshots"):
        file.write_text(transcripts[name], encoding="utf-8")
    # where lines are broken depends on the version of argparse
    assert transcripts[name].split() == file.read_text(encoding="utf-8").split()
