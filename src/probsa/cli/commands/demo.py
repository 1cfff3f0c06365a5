"""probsa demo."""

from pathlib import Path

from ..command import Answer
from ..demo_folder import check_folder
from ..flags import Dir


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
