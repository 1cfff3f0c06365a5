"""Checks of the maps of finished runs that need the trained model.

How faithful the model's own score is (the area between its curves of deletion, and the correlation
with leaving instances out), and how well the score localises that its maps would show: the one that
the validation bags chose (`choose_map_score`), which for attention models is often another one.

OUT/cells/SET/METHOD/split0-seed0/map_checks.json   the checks of a run
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from probsa.core import as_record, read_json, seed_of, write_json
from probsa.errors import ProbSAError
from probsa.evaluation import (
    LEAVE_ONE_OUT_UP_TO,
    DeletionCurves,
    MapScore,
    choose_map_score,
    deletion_curves,
    load,
    read_predictions,
    shown_precision,
)
from probsa.training import RunFolder, open_units

FILE = "map_checks.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class MapChecks:
    """What was found for a run; the mappings are by positive test bag."""

    asked: int
    """Largest number of bags that a model without a closed form predicts again."""
    removal: str | None
    """`pooling` or `bag`, see `evaluation.Removal`; None if no bag was used."""
    areas: Mapping[str, float | None]
    """Area between the curves of deletion of the model's own score."""
    correlations: Mapping[str, float | None]
    """Spearman's correlation of that score with the drop of the probability without each one."""
    shown: MapScore | None
    """The score that the validation bags chose for the maps."""
    shown_precisions: Mapping[str, float | None]
    """AP of the shown score within the bag; None unless it has instances of both labels."""


def check_maps(out: Path, *, bags: int) -> list[str]:
    """Check the maps of the finished runs of an experiment, and return why some were not.

    Args:
        out: The experiment's folder.
        bags: Largest number of positive test bags of a run that a model without a closed form
            predicts again. They are drawn by their names, so all methods have the same ones, from
            those with at most `LEAVE_ONE_OUT_UP_TO` instances. Other models use all.
    """
    failures = []
    for cell in sorted(out.glob("cells/*/*/*/cell.json")):
        try:
            checks = read_map_checks(cell.parent)
            if checks is None or checks.asked != bags:
                write_json(cell.parent / FILE, asdict(_of_run(RunFolder(cell.parent), bags=bags)))
        except ProbSAError as error:
            failures.append(f"{cell.parent}: its maps were not checked: {error}")
    return failures


def read_map_checks(folder: Path) -> MapChecks | None:
    """Return what was found for the run in a folder; None if there is nothing.

    Raises:
        InputError: The file is damaged; remove it.
    """
    path = folder / FILE
    return as_record(MapChecks, read_json(path), where=str(path)) if path.is_file() else None


def _of_run(run: RunFolder, *, bags: int) -> MapChecks:
    predictions = read_predictions(run.predictions)
    rows = list(zip(predictions.bags, predictions.parts, predictions.labels, strict=True))
    positive = sorted((b for b, part, y in rows if part == "test" and y), key=seed_of)
    predictor = load(run.path, device=run.config().training.device)
    features, _ = open_units(run.config().data)
    names = [b for b, part, _ in rows if part == "val"]
    choice = choose_map_score(predictor, names, read=features.bag, threshold=predictions.threshold)
    shown = None if choice is None else choice.chosen
    curves: list[DeletionCurves] = []
    for name in positive:  # all bags where they have a closed form, else some
        closed = predictions.instances(name).leave_one_out is not None
        if not closed and len(curves) == bags:
            break
        bag = features.bag(name)
        if closed or len(bag) <= LEAVE_ONE_OUT_UP_TO:
            curves.append(deletion_curves(predictor, bag, orders=("shown",))[1])
    return MapChecks(
        asked=bags,
        removal=curves[0].removal if curves else None,
        areas={c.name: c.areas.get("shown") for c in curves},
        correlations={c.name: c.rank_correlation for c in curves},
        shown=shown,
        shown_precisions={b: shown_precision(predictions.instances(b), shown) for b in positive},
    )
