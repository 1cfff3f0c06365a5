"""Stage 10: the list of bags on the page, and what is said of the run."""

from dataclasses import dataclass
from pathlib import Path

from ..core import TextTable, open_hdf5
from ..errors import BagError
from ..evaluation import FAILED, Predictions, stated_of, truth_of
from ..tasks import class_name
from ..training import RunFolder
from .scripts import without_folders

STATED = {"model": "Model", "members": "Members", "epoch": "Epoch", "temperature": "Temperature"}
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
    file = table.folder / FAILED
    left_out = TextTable.read(file).rows if file.is_file() else []
    reasons = {r["bag"]: without_folders(r.get("reason", "")) for r in left_out if r.get("bag")}
    return rows + [
        Row(name=name, failed=reason or "It could not be predicted.")
        for name, reason in reasons.items()
        if name not in table.bags
    ]


def _row(table: Predictions, k: int) -> Row:
    name, label = table.bags[k], table.labels[k]
    p = table.row(k)
    said = table.of_task.verdict(p, stated_of(table))
    wrong = None if label is None else class_name(table.classes, label) != said.call
    if table.targets is not None:
        wrong = table.of_task.contradicts(p, table.targets[k].tolist(), stated_of(table))
    count, failed = _count(table.instance_path(name))
    return Row(
        name=name,
        part=table.parts[k],
        label=truth_of(table, k),
        call=said.call,
        probability=said.value,
        spread=said.spread,
        span=said.span,
        threshold=_threshold(table, k),
        n=count,
        wrong=wrong,
        unsure=said.unsure,
        unlike=table.ood is not None and bool(table.ood[k] >= 1),
        failed=failed,
    )


def _threshold(table: Predictions, k: int) -> float | None:
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

    found = [("Predictions", table.folder.name)]
    for key, title in STATED.items():
        value = getattr(table.metadata, key)
        if isinstance(value, tuple):
            value = ", ".join(str(v) for v in value)
        if value not in (None, ""):
            found.append((title, str(value)))
    if table.threshold is not None:
        found.append(("Threshold of the call", f"{table.threshold:.3g}"))
    if len(table.classes) > 1:
        found.append(("Classes", ", ".join(table.classes)))
    return [*found, ("Software", f"probsa {__version__}")]


def title_of(folder: Path) -> str:
    """Return the name of a predictions folder, or of the run that it belongs to."""
    path = folder.resolve()
    return path.parent.name if RunFolder(path.parent).config_file.is_file() else path.name
