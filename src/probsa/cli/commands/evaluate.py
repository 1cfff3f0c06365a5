"""probsa evaluate."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from ...errors import InputError
from ..command import Answer, Flag, write
from ..flags import Classes, Csv, Dir, GuaranteeFlags, ThresholdRule, Whole


def run(
    predictions: Annotated[Path, Flag(holds="folder")],
    *,
    labels: Csv | None = None,
    classes: Classes | None = None,
    part: Literal["auto", "test", "val", "train", "all"] = "auto",
    guarantees: GuaranteeFlags,
    threshold: ThresholdRule | None = None,
    bootstrap: Whole = 2000,
    seed: Whole = 0,
    figures: Dir | None = None,
    full: bool = False,
) -> Answer:
    """Compute the metrics of a folder of predictions, with confidence intervals.

    Args:
        predictions: Run folder, or folder that probsa predict wrote.
        labels: Table of labels with the columns bag,label[,group].
        part: Which bags to evaluate. Default: auto, the bags that were not used in training.
        bootstrap: Number of resamples for the confidence intervals; 0 for none.
        seed: Seed of the resampling.
        figures: Folder to write figures of reliability, retention and deletion to, as PNG.
        full: Print the whole report instead of its summary.
    """
    from ...evaluation import check_truth, read_predictions

    if bootstrap < 0 or 0 < bootstrap < 20:
        raise InputError(f"--bootstrap is {bootstrap}: expected 0 (no intervals) or at least 20")
    read_predictions(predictions)
    check_truth(predictions, labels, classes=classes)
    guarantees.check()
    from ...evaluation import evaluate

    options = guarantees.options()
    report = evaluate(
        predictions,
        labels=labels,
        classes=classes,
        part=part,
        guarantees=options,
        threshold=threshold,
        bootstrap=bootstrap,
        seed=seed,
    )
    if figures is not None:
        from ...maps import write_report_figures

        write_report_figures(report, figures)
    for reason in report.unmet:
        write(f"probsa: error: {reason}", error=True)
    render = partial(report.render, full=full)
    return Answer(report.to_dict(), render, status=2 if report.unmet else 0)
