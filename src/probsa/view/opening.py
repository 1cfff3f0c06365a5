"""Stage 10: open a run or a predictions folder for the page."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ..evaluation import read_predictions
from ..maps import CohortSources
from ..training import RunFolder
from .pages import ViewData


def open_view(
    predictions: Path,
    *,
    slides: Path | None = None,
    against: Path | None = None,
    mpp: float | Mapping[str, float] | None = None,
    max_mpp: float | None = None,
    most_pixels: int | None = None,
) -> ViewData:
    """Open the predictions of a run, or a folder of predictions, for the page.

    Args:
        predictions: A run folder, or a folder that `probsa predict` wrote.
        slides: A work folder of `probsa patch`, or a folder of slides or series.
        against: A run or predictions of another model, to show differences.
        mpp: Micrometres per level-0 pixel of slides whose files do not state it, or a mapping from
            names of slides.
        max_mpp: See `ViewData`.
        most_pixels: See `ViewData`.

    Raises:
        InputError, TableError: a folder does not exist, or is not what it should be.
    """
    folder, about = _predictions_of(Path(predictions))
    return ViewData(
        read_predictions(folder),
        sources=None if slides is None else CohortSources(slides, mpp=mpp),
        other=None if against is None else read_predictions(_predictions_of(Path(against))[0]),
        max_mpp=max_mpp,
        most_pixels=most_pixels,
        about=about,
    )


def _predictions_of(path: Path) -> tuple[Path, tuple[tuple[str, str], ...]]:
    """Return the predictions of a run folder with facts about the run, or the folder itself."""
    run = RunFolder(path)
    if run.config_file.is_file():
        about = (("Run", path.resolve().name), ("Weights (SHA-256)", _digest(run)))
        return run.predictions, tuple(fact for fact in about if fact[1])
    return path, ()


def _digest(run: RunFolder) -> str:
    """Return the first digits of a hash of the run's weights; empty if they are not there."""
    found = hashlib.sha256()
    for member in run.members():
        if not member.best.is_file():
            return ""
        with member.best.open("rb") as f:
            found.update(hashlib.file_digest(f, "sha256").digest())
    return found.hexdigest()[:16]
