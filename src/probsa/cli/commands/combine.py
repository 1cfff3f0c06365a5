"""probsa combine."""

from pathlib import Path
from typing import Annotated

from ..command import Answer, Flag
from ..flags import Dir


def run(
    predictions: Annotated[list[Path], Flag("PREDICTIONS", holds="folder")],
    *,
    out: Dir,
    overwrite: bool = False,
) -> Answer:
    """Average what several runs predict of the same bags, such as runs with different encoders.

    The result is a folder of predictions, for `probsa evaluate`, `map` and `view`. Its maps are the
    means, and their variance has a part between the runs. Runs with the same features need no more
    than `probsa predict RUN RUN`.

    Args:
        predictions: Two or more run folders, or folders that probsa predict wrote.
        out: Folder for the combined predictions.
        overwrite: Replace existing predictions.
    """
    from ...core import counted
    from ...evaluation import check_predictions_output, read_predictions

    for folder in predictions:
        read_predictions(folder)
    check_predictions_output(out, overwrite=overwrite)
    from ...evaluation import combine_predictions

    found = combine_predictions(predictions, out, overwrite=overwrite)
    document = {
        "predictions": str(found.folder),
        "bags": found.bags,
        "threshold": found.threshold,
        "failed": [{"bag": bag, "reason": reason} for bag, reason in found.failures],
    }
    text = f"{counted(found.bags, 'bag')} combined: {found.folder / 'predictions.csv'}"
    return Answer(document, text, found.failures)
