"""probsa demo."""

from pathlib import Path

from ..command import Answer
from ..flags import Dir


def run(*, out: Dir = Path("probsa-demo")) -> Answer:
    """Run the complete workflow on slides of handwritten digits, in about a minute and a half.

    No input files are needed. The demo trains ABMIL, the paper's ProbSA and the default
    recipe, evaluates them and draws their maps side by side on a page, OUT/index.html.

    Args:
        out: Folder to write to.
    """
    from ..demo import run_demo
    from ..terminal import TrainingBar

    with TrainingBar() as bar:
        result = run_demo(out, reporter=bar)
    return Answer(result.to_dict(), result.render)
