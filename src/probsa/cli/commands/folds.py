"""probsa folds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ..command import Answer, Flag
from ..flags import Classes, Whole

if TYPE_CHECKING:
    from rich.console import Console


def run(
    labels: Annotated[Path, Flag("LABELS.csv", holds="file")],
    *,
    out: Annotated[Path, Flag("CSV")],
    folds: Whole = 5,
    site: Annotated[str, Flag("COLUMN")] | None = None,
    sites: Literal["apart", "spread"] | None = None,
    test_share: Annotated[float, Flag("SHARE")] = 0.0,
    seed: Whole = 0,
    task: Literal[
        "auto", "binary", "multiclass", "ordinal", "multilabel", "regression", "survival"
    ] = "auto",
    target: Annotated[list[str], Flag("COLUMN")] | None = None,
    classes: Classes | None = None,
) -> Answer:
    """Add a column of folds to a table of labels: by patient, balanced, with sites kept apart.

    The table has the columns bag,label[,group], as for probsa train. If it has no group, patients
    are read from the names of TCGA, CPTAC and GTEx, and the column group is added.

    Args:
        labels: Table of labels.
        out: Table to write. It is the input with the column fold, for probsa train --test-fold K.
        folds: Number of folds, 3 to 20.
        site: Column with the site of each bag. Default: site, or else the names of TCGA.
        sites: Keep each site in one fold (apart), or spread it over all of them. Default: apart
            with --site, otherwise sites are not considered.
        test_share: Share of the bags to hold out of all folds. They are written to a table of
            their own, CSV with _test before its suffix.
        seed: Decides between equally good folds.
        task: The task of probsa train; classes, grades, findings, events or quintiles are balanced.
        target: Column or columns of the target, as in probsa train. Default: label.
    """
    from ...datasets import FoldOptions, make_folds
    from ...tasks import TargetOptions

    options = FoldOptions(folds=folds, site=site, sites=sites, test_share=test_share, seed=seed)
    columns = None if target is None else tuple(target)
    made = make_folds(
        labels, options, target=TargetOptions(task=task, target=columns), classes=classes
    )
    files = made.write(out)

    def render(console: "Console") -> None:
        made.render(console)
        for file in files:
            console.print(f"written: {file}", markup=False, soft_wrap=True, highlight=False)

    return Answer({"files": [str(file) for file in files], **made.to_dict()}, render)
