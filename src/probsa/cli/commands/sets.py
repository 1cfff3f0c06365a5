"""probsa sets."""

from pathlib import Path
from typing import Annotated

from ...errors import InputError, OutputExists
from ..command import Answer, Flag
from ..flags import Classes, Csv, GuaranteeFlags


def run(
    predictions: Annotated[Path, Flag(holds="folder")],
    *,
    out: Annotated[Path, Flag("CSV")],
    guarantees: GuaranteeFlags,
    labels: Csv | None = None,
    classes: Classes | None = None,
    overwrite: bool = False,
) -> Answer:
    """Write prediction sets and accepted calls for new bags, with guarantees from calibration bags.

    The labels of the new bags are not needed. docs/guarantees.md says what is promised.

    Args:
        predictions: Folder that probsa predict wrote for the new bags, or a run folder.
        out: Table to write.
        labels: Table of the calibration bags with the columns bag,label[,group]. Default: the
            labels stored with their predictions.
        overwrite: Replace an existing table.
    """
    from ...evaluation import check_truth, read_predictions

    guarantees.check()
    if not guarantees.are_requested:
        raise InputError("probsa sets needs a level, for example --coverage 0.9")
    if out.exists() and not overwrite:
        raise OutputExists(f"{out} exists: give another --out, or --overwrite")
    read_predictions(predictions)
    check_truth(guarantees.calibration or predictions, labels, classes=classes)
    from ...evaluation import write_sets

    options = guarantees.options()
    assert options is not None, "a guarantee is requested"
    written = write_sets(
        predictions, options, out=out, labels=labels, classes=classes, overwrite=overwrite
    )
    return Answer(written.to_dict(), written.render)
