"""probsa demo."""

from pathlib import Path

from ...core import is_empty
from ...errors import OutputExists
from ..command import Answer
from ..flags import Dir

MARK = "probsa-demo.json"
"""File that marks a folder as written by a demo, so that a later demo may replace it."""


def check_folder(out: Path) -> None:
    """Refuse a folder that contains something that a demo did not write.

    Raises:
        OutputExists: names the folder.
    """
    if out.exists() and not (out / MARK).is_file() and (not out.is_dir() or not is_empty(out)):
        raise OutputExists(f"{out} exists and is not the folder of a demo: give another --out")


def run(*, out: Dir = Path("probsa-demo")) -> Answer:
    """Run the complete workflow on slides of handwritten digits, in about a minute.

    No input files are needed. The demo trains ABMIL, the paper's ProbSA and the default
    recipe, evaluates them, draws their maps side by side, and writes a page, OUT/page/index.html.

    Args:
        out: Folder to write to.
    """
    check_folder(out)
    from ..demo import render, run_demo
    from ..terminal import TrainingBar

    with TrainingBar() as bar:
        result = run_demo(out, reporter=bar)
    return Answer(result, lambda console: render(result, console))
