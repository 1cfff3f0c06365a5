"""Stage 10: the list of bags on the page, and what is said of the run."""

from dataclasses import dataclass
from pathlib import Path

from ..core import TextTable, open_hdf5
from ..errors import BagError
from ..evaluation import FAILED, Predictions, stated_of, truth_of
from ..tasks import class_name
from ..training import RunFolder
from .scripts import without_folders

METADATA_TITLES = {
    "model": "Model",
    "members": "Members",
    "epoch": "Epoch",
    "temperature": "Temperature",
}
"""Fields of `PredictionsMetadata` that the page shows, and their titles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One bag of the list."""

    name: str
    part: str = ""
    """Part of the run's split: train, val, test or new."""
    label: str = ""
    """The true class, or what else the bag is labelled with; empty if it is unknown."""
    call: str = ""
    """The predicted class, or what else is predicted, as `words` says."""
    probability: float | None = None
    """Probability of the last of two classes, or of the predicted one of several; of other tasks
    the number that `words` names."""
    spread: float | None = None
    """Standard deviation of that number."""
    span: str = ""
    """What the standard deviation spans, see `Verdict.span`."""
    threshold: float | None = None
    """The probability from which the class or the finding is called; None for other tasks."""
    n: int | None = None
    wrong: bool | None = None
    """Whether the label contradicts the prediction; None without a label."""
    unsure: bool = False
    """Whether the call changes within one standard deviation of the probability."""
    unlike: bool = False
    """Whether it is further from training than every validation bag."""
    failed: str = ""
    """Why there is no map; empty if there is one."""


def list_rows(table: Predictions) -> list[Row]:
    """Return the bags with the largest spread first, then those that could not be predicted."""
    rows = [_row(table, k) for k in range(len(table.bags))]
    rows.sort(key=lambda r: -(r.spread or 0.0))
    for name, reason in _failures(table.folder / FAILED).items():
        if name not in table.bags:
            rows.append(Row(name=name, failed=reason or "It could not be predicted."))
    return rows


def _failures(file: Path) -> dict[str, str]:
    """Return why bags could not be predicted, by name; of a repeated name, the last reason."""
    if not file.is_file():
        return {}
    reasons = {}
    for row in TextTable.read(file).rows:
        if row.get("bag"):
            reasons[row["bag"]] = without_folders(row.get("reason", ""))
    return reasons


def _row(table: Predictions, k: int) -> Row:
    """Return what the list says of one bag."""
    name = table.bags[k]
    label = table.labels[k]
    p = table.row(k)
    verdict = table.of_task.verdict(p, stated_of(table))
    wrong = None
    if table.targets is not None:
        wrong = table.of_task.contradicts(p, table.targets[k].tolist(), stated_of(table))
    elif label is not None:
        wrong = class_name(table.classes, label) != verdict.call
    count, failed = _count(table.instance_path(name))
    return Row(
        name=name,
        part=table.parts[k],
        label=truth_of(table, k),
        call=verdict.call,
        probability=verdict.value,
        spread=verdict.spread,
        span=verdict.span,
        threshold=_threshold(table, k),
        n=count,
        wrong=wrong,
        unsure=verdict.unsure,
        unlike=table.ood is not None and bool(table.ood[k] >= 1),
        failed=failed,
    )


def _threshold(table: Predictions, k: int) -> float | None:
    """Return the threshold of the call; of findings, that of the most probable one."""
    if not table.of_task.has_findings:
        return table.threshold
    p = table.probability[k]
    return float(stated_of(table).of_findings(len(p))[p.argmax()])


def _count(path: Path) -> tuple[int | None, str]:
    """Return the number of a bag's instances, from the header of its file alone."""
    if not path.is_file():
        return None, f"There are no per-instance outputs at {path.name}: predict this bag again."
    try:
        with open_hdf5(path) as f:
            return int(f["attention_mean"].shape[0]), ""  # type: ignore[union-attr]
    except BagError as error:
        return None, f"The file of its outputs is damaged: {without_folders(str(error))}"


def facts(table: Predictions) -> list[tuple[str, str]]:
    """Return what is known of the run and its predictions, as pairs of title and text."""
    from .. import __version__

    pairs = [("Predictions", table.folder.name)]
    for key, title in METADATA_TITLES.items():
        value = getattr(table.metadata, key)
        if isinstance(value, tuple):
            value = ", ".join(str(v) for v in value)
        if value not in (None, ""):
            pairs.append((title, str(value)))
    if table.threshold is not None:
        pairs.append(("Threshold of the call", f"{table.threshold:.3g}"))
    if len(table.classes) > 1:
        pairs.append(("Classes", ", ".join(table.classes)))
    pairs.append(("Software", f"probsa {__version__}"))
    return pairs


def title_of(folder: Path) -> str:
    """Return the name of a predictions folder, or of the run that it belongs to."""
    path = folder.resolve()
    return path.parent.name if RunFolder(path.parent).config_file.is_file() else path.name
