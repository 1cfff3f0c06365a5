"""The folds of a table of labels: their options, what came out, and the tables that are written."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from jaxtyping import Float

from ..core import (
    Limits,
    Seed,
    TextTable,
    check_options,
    counted,
    csv_text,
    enumerated,
    write_text,
)
from ..errors import OutputExists
from .labels import LabelTable
from .names import listed

if TYPE_CHECKING:
    from rich.console import Console

SITE = "site"
"""The column of sites, unless another one is named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldOptions:
    """How folds are made.

    Args:
        folds: Number of folds; training needs three.
        site: The column of the site; None for `site`, or else what the names of the bags state.
        sites: Whether every site is in one fold (`apart`) or in all of them (`spread`); None if
            sites are not considered, which they are if `site` is given.
        test_share: Share of the bags that are in no fold, but in a table of their own.
        seed: Decides between equally good folds.

    Raises:
        InputError: an option is out of its limits.
    """

    folds: Annotated[int, Limits(at_least=3, at_most=20)] = 5
    site: str | None = None
    sites: Literal["apart", "spread"] | None = None
    test_share: Annotated[float, Limits(at_least=0, at_most=0.5)] = 0.0
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_options(self)
        if self.site is not None and self.sites is None:
            object.__setattr__(self, "sites", "apart")

    @property
    def shares(self) -> Float[np.ndarray, " parts"]:
        """The share of each fold, and of the test part if there is one."""
        fold_shares = np.full(self.folds, (1 - self.test_share) / self.folds)
        return np.append(fold_shares, self.test_share) if self.test_share else fold_shares


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where the patients or the sites of the bags are read from."""

    kind: Literal["column", "names", "bags"]
    """A column, the names of the bags, or none of them: each bag is a patient of its own."""
    column: str = ""
    forms: tuple[str, ...] = ()
    """The forms of the names, such as `TCGA`."""
    bags: int
    """Number of bags of which the patient or site is stated."""

    def text(self, total: int) -> str:
        """Return the origin in words, of a table with `total` bags."""
        if self.kind == "column":
            return f"from the column {self.column!r}"
        if self.kind == "bags":
            return "each bag counts as one: no column 'group', and the names state no patients"
        rest = ""
        if self.bags < total:
            rest = f"; each of the {total - self.bags} other bags counts as one"
        return f"from the names of {counted(self.bags, 'bag')} ({enumerated(self.forms)}){rest}"


@dataclass(frozen=True, slots=True)
class FoldNote(ABC):
    """What users should know about the folds that were made."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The note in words."""


@dataclass(frozen=True, slots=True)
class JoinedSites(FoldNote):
    """Sites that are kept together, since a patient has bags at several of them."""

    sites: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"the sites {listed(self.sites)} share patients, and are in one fold together"


@dataclass(frozen=True, slots=True)
class LargeSite(FoldNote):
    """A site, or sites that share patients, with more bags than a fold should have."""

    sites: tuple[str, ...]
    share: float
    """Its share of all bags."""
    fold_share: float

    @property
    def text(self) -> str:
        return (
            f"{listed(self.sites)} has {self.share:.0%} of all bags, more than a fold should have "
            f"({self.fold_share:.0%}): the folds cannot be of equal size"
        )


@dataclass(frozen=True, slots=True)
class AbsentStratum(FoldNote):
    """A class, finding or other stratum that some parts have no bag of."""

    stratum: str
    unit: str
    """What is kept whole: `patient` or `site`."""
    units: int
    """How many of them have bags of the stratum."""
    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        return (
            f"no bag of {self.stratum!r} is in {enumerated(self.parts)}: "
            f"{counted(self.units, self.unit)} in all have some"
        )


@dataclass(frozen=True, slots=True)
class MixedSites(FoldNote):
    """Sites that are known, but not considered."""

    sites: int
    origin: Origin

    @property
    def text(self) -> str:
        source = f"column {self.origin.column!r}"
        if self.origin.kind == "names":
            source = f"{enumerated(self.origin.forms)} names"
        return (
            f"the bags look like {self.sites} sites ({source}), which these folds mix: --sites "
            "apart keeps each in one fold"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PartCounts:
    """What a fold or the test part contains."""

    part: str
    """`fold 0`, …, or `test`."""
    bags: int
    patients: int
    sites: int | None
    strata: dict[str, int]
    """The number of bags of each class, finding, event or quintile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Folds:
    """The folds of a table of labels; every tuple is as long as its rows."""

    source: TextTable
    """All columns as they are in the file."""
    table: LabelTable
    folds: tuple[int | None, ...]
    """None for bags of the test part."""
    patients: tuple[str, ...]
    patients_from: Origin
    sites: tuple[str, ...] | None
    """None if sites are not considered."""
    sites_from: Origin | None
    options: FoldOptions
    parts: tuple[PartCounts, ...]
    imbalance: float
    """See `balance.imbalance`."""
    least_imbalance: float
    """No folds that keep the same bags together have less."""
    notes: tuple[FoldNote, ...]

    def rows(self, *, test: bool = False) -> tuple[list[str], list[dict[str, object]]]:
        """Return the header and the rows of the table with folds, or of that of the test part.

        Patients and sites that were read from names become the columns `group` and `site`.
        """
        header = list(self.source.columns)
        new_columns: dict[str, Sequence[object]] = {}
        if self.patients_from.kind == "names":
            new_columns["group"] = self.patients
        if self.sites is not None and self.sites_from and self.sites_from.kind == "names":
            new_columns[SITE] = self.sites
        if not test:
            new_columns["fold"] = self.folds
        rows: list[dict[str, object]] = []
        for k, cells in enumerate(self.source.rows):
            if (self.folds[k] is None) == test:
                added = {name: values[k] for name, values in new_columns.items()}
                rows.append({**cells, **added})
        return [*header, *new_columns], rows

    def write(self, out: Path) -> list[Path]:
        """Write the table with folds, and beside it the table of the test part, if there is one.

        Writing the same tables again changes nothing.

        Raises:
            OutputExists: there is something else at a path, such as the table of labels itself.
        """
        texts = {out: csv_text(*self.rows())}
        if self.options.test_share:
            test_path = out.with_name(f"{out.stem}_test{out.suffix}")
            texts[test_path] = csv_text(*self.rows(test=True))
        new = [path for path, text in texts.items() if not self._is_written(path, text)]
        for path in new:
            write_text(path, texts[path])
        return list(texts)

    def _is_written(self, path: Path, text: str) -> bool:
        """Return whether a file has this text already; refuse to replace another one."""
        if not os.path.lexists(path):
            return False
        if path.exists() and path.samefile(self.source.path):
            raise OutputExists(f"{path} is the table of labels itself: give another --out")
        if path.is_file() and path.read_bytes() == text.encode():
            return True
        raise OutputExists(f"{path} exists: give another --out, or move it away")

    def to_dict(self) -> dict[str, Any]:
        """Return the folds as JSON-compatible values."""
        return {
            "folds": dict(zip(self.table.bags, self.folds, strict=True)),
            "parts": [asdict(part) for part in self.parts],
            "patients": len(set(self.patients)),
            "patients_from": asdict(self.patients_from),
            "sites": None if self.sites is None else len(set(self.sites)),
            "sites_from": None if self.sites_from is None else asdict(self.sites_from),
            "imbalance": self.imbalance,
            "least_imbalance": self.least_imbalance,
            "notes": [{"kind": type(note).__name__, **asdict(note)} for note in self.notes],
        }

    def render(self, console: "Console") -> None:
        """Print what came out."""
        from rich.table import Table

        plain: dict[str, Any] = {"markup": False, "soft_wrap": True, "highlight": False}
        total = len(self.table.bags)
        console.print(self.table.describe(), **plain)
        patient_count = len(set(self.patients))
        console.print(f"patients: {patient_count:,}, {self.patients_from.text(total)}", **plain)
        if self.sites is not None and self.sites_from is not None:
            where = "each in one part" if self.options.sites == "apart" else "spread over all parts"
            site_count = len(set(self.sites))
            console.print(f"sites: {site_count:,}, {self.sites_from.text(total)}; {where}", **plain)
        table = Table(box=None, pad_edge=False)
        table.add_column("part")
        for heading in ("bags", "patients"):
            table.add_column(heading, justify="right")
        if self.sites is not None:
            table.add_column("sites", justify="right")
        for name in self.parts[0].strata:
            table.add_column(name, justify="right", overflow="fold")
        for part in self.parts:
            sites = [] if part.sites is None else [part.sites]
            numbers = [part.bags, part.patients, *sites, *part.strata.values()]
            table.add_row(part.part, *(f"{n:,}" for n in numbers))
        console.print(table, markup=False)
        console.print(
            f"imbalance: {self.imbalance:.4f} (at least {self.least_imbalance:.4f} cannot be "
            "avoided)",
            **plain,
        )
        for text in (*self.table.notes, *(note.text for note in self.notes)):
            console.print(f"note: {text}", **plain)
