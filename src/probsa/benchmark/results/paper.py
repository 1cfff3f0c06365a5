"""The results that the paper prints (paper.csv: tables 2 to 5), under our method names.

AUROC and F1 are in percent, times in milliseconds; `rank` rows are the paper's average ranks. Its
rows with λ = 0, for both Σ, are the plain baseline.
"""

import csv
import io
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from ..grid.methods_and_cells import Family, Method

PaperTable = Literal["2", "3", "4", "5"]
PaperMetric = Literal["AUROC", "F1", "rank", "ms"]

_TABLES: dict[str, PaperTable] = {
    "table2_no_global": "2",
    "table3_global": "3",
    "table4_time_ms_per_step": "4",
    "table5_ablation": "5",
}
LABELS = {
    "ABMIL+ProbSA Dirac": "abmil-probsa-dirac",
    "ABMIL+ProbSA Diag": "abmil-probsa-diag",
    "ABMIL": "abmil",
    "CLAM": "clam-sb",
    "DSMIL": "dsmil",
    "PatchGCN": "patchgcn",
    "DTFD-MIL": "dtfdmil",
    "T-ABMIL+ProbSA Dirac": "tabmil-probsa-dirac",
    "T-ABMIL+ProbSA Diag": "tabmil-probsa-diag",
    "T-ABMIL": "tabmil",
    "TransMIL": "transmil",
    "SETMIL": "setmil",
    "GTP": "gtp",
    "IIBMIL": "iibmil",
    "CAMIL": "camil",
    "VMIL": "vmil",
}
"""The paper's method names and our registered models, in the order of its tables 2 and 3."""
STUDIES = {"RSNA": "rsna", "PANDA": "panda", "CAMELYON16": "camelyon16"}
"""The paper's data sets and our names for them."""
BASELINES: dict[Family, str] = {"local": "abmil", "global": "tabmil"}
"""The plain model of each family, which corresponds to λ = 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperRow:
    """One printed result."""

    table: PaperTable
    method: str
    """The method's name in the paper."""
    label: str
    """The name of our registered model."""
    kl_weight: str
    """λ in the paper's notation (`0.0`, `0.1`, `cyclical`); empty outside table 5."""
    study: str
    """Our name of the data set; `rank` for average ranks."""
    metric: PaperMetric
    mean: float
    sd: float


def paper_rows(table: PaperTable) -> tuple[PaperRow, ...]:
    """Return every result of one of the paper's tables, in its order."""
    return tuple(row for row in _rows() if row.table == table)


def paper_value(
    table: PaperTable,
    label: str,
    *,
    study: str,
    metric: PaperMetric,
    kl_weight: str = "",
) -> PaperRow | None:
    """Return one result, or None if the paper has none."""
    wanted = (table, label, study, metric, kl_weight)
    return next(
        (r for r in _rows() if (r.table, r.label, r.study, r.metric, r.kl_weight) == wanted), None
    )


def spelled(method: Method) -> str:
    """Return λ of a method in the paper's notation; `0.0` for a plain baseline."""
    kl = method.kl_weight
    if kl is None:
        return "0.0"
    return kl if isinstance(kl, str) else f"{kl:g}" if kl % 1 else f"{kl:.1f}"


def study_of(data: str) -> str | None:
    """Return the paper's data set to which a grid's data set corresponds, judging by its name."""
    return next((ours for ours in STUDIES.values() if data.lower() == ours), None)


def title_of(study: str) -> str:
    """Return the paper's name of one of its data sets."""
    return next((theirs for theirs, ours in STUDIES.items() if ours == study), study)


def position(method: Method) -> tuple[float, str, int, float]:
    """Return the sort key of a method in the paper's order of tables.

    A posterior comes before its plain model, unknown methods last. λ sorts as numbers, linear,
    cyclical.
    """
    order = list(LABELS.values())
    family = 1 if method.family == "global" else 0
    known = float(len(order))
    if method.model in order:
        known = float(order.index(method.model))
    elif method.baseline in order:
        known = order.index(method.baseline) - 0.5
    kl = method.kl_weight
    number = kl if isinstance(kl, int | float) else 0.0
    kind = 0 if kl is None else 1 if not isinstance(kl, str) else 2 if kl == "linear" else 3
    return 100 * family + known, method.label, kind, float(number)


@cache
def _rows() -> tuple[PaperRow, ...]:
    text = files("probsa.benchmark").joinpath("paper.csv").read_text(encoding="utf-8")
    return tuple(
        PaperRow(
            table=_TABLES[row["table"]],
            method=row["model"],
            label=LABELS[row["model"]],
            kl_weight=row["lambda"],
            study=STUDIES.get(row["dataset"], row["dataset"]),
            metric=row["metric"],  # pyright: ignore[reportArgumentType]
            mean=float(row["mean"]),
            sd=float(row["sd"]),
        )
        for row in csv.DictReader(io.StringIO(text))
    )
