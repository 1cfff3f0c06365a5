"""Make folds for a table of labels: by patient, balanced, with sites kept apart or spread."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ..core import TextTable, counted, is_missing, numbered_lines
from ..errors import TableError, hint
from ..tasks import TargetOptions
from .balance import Division, deal_out, divide, imbalance, least_imbalance
from .barcodes import Barcodes
from .fold_table import (
    SITE,
    AbsentStratum,
    FoldNote,
    FoldOptions,
    Folds,
    JoinedSites,
    LargeSite,
    MixedSites,
    Origin,
    PartCounts,
)
from .labels import CLASS_LABELS, LabelTable, read_table, select_rows
from .names import HEADER, SYNONYMS, listed
from .splits import fold_splits

NO_LABEL = "no label"
NUMBERINGS = 50
"""How many numberings of the folds are tried: fold k + 1 validates when fold k is tested, so that a
class of two folds only trains if these are not neighbours."""


class Strata(NamedTuple):
    """What is balanced among the folds."""

    names: list[str]
    members: Float[np.ndarray, "bags strata"]
    """1 for the bags of each stratum."""
    needed: Bool[np.ndarray, " strata"]
    """Whether some bags of the stratum must train and others be tested."""


def make_folds(
    path: Path | str,
    options: FoldOptions,
    *,
    target: TargetOptions = CLASS_LABELS,
    classes: Sequence[str] | None = None,
) -> Folds:
    """Return folds for a table of labels.

    Bags of one patient are in one fold. Each fold gets its share of the bags of each class, grade,
    finding, event or quintile, and of those without a label.

    Args:
        path: The table, as `read_table` reads it, without the columns `fold` and `split`.
        options: How many folds are made, and what they do with sites.
        target: The task and the columns of the target.
        classes: Names of the classes in order of their index.

    Raises:
        TableError: the table is invalid or has folds, sites are not stated, there are fewer
            patients or sites than folds, or a class is of one of them only or would not train.
    """
    path = Path(path)
    source = TextTable.read(path, expected=HEADER)
    for column in ("fold", "split"):
        if column in source.columns:
            raise TableError(
                f"{path} has a column {column!r} already: leave it out to make new folds"
            )
    table = read_table(
        path, classes=classes, labels_required=False, columns_required=True, target=target
    )
    barcodes = Barcodes.read(table.bags)
    patients_from = _patients_from(source, table, barcodes)
    patients = barcodes.groups(table.bags) if table.groups is None else table.groups
    table = replace(table, groups=patients)
    sites_from = _sites_from(source, barcodes, options)
    sites = None
    notes: list[FoldNote] = []
    if options.sites is not None:
        sites = _read_sites(source, table, barcodes, sites_from)
    elif sites_from is not None:
        site_count = _site_count(source, barcodes, sites_from)
        if site_count > 1:
            notes.append(MixedSites(site_count, sites_from))
    strata = _strata(table)
    apart = sites if options.sites == "apart" else None
    units = _units(patients, apart)
    unit = "patient" if apart is None else "site"
    counts = _sum_by(units, strata.members)
    _check_unit_count(table, len(counts), unit=unit, options=options)
    _check_holders(table, strata, units=units, sites=apart)
    rng = np.random.default_rng(options.seed)
    if apart is None:
        by_site = None if sites is None else _sum_by(units, _by_site(strata.members, sites))
        unit_parts = deal_out(counts, options.shares, second=by_site, rng=rng)
        division = Division(
            unit_parts,
            imbalance(counts, unit_parts, options.shares),
            least_imbalance(counts.sum(0), options.shares),
        )
    else:
        division = divide(counts, options.shares, rng=rng)
        notes += _site_notes(apart, units, options)
    if len(set(division.parts.tolist())) < len(options.shares):
        raise TableError(
            f"{path}: {counted(len(counts), unit)} leave a fold or the test part without a bag: "
            "give fewer --folds, or another --test-share"
        )
    folds = _number(table, division.parts[units], options, rng)
    parts = []
    for number in [*range(options.folds), *([None] if options.test_share else [])]:
        rows = [row for row, fold in enumerate(folds) if fold == number]
        parts.append(_part_counts(number, rows, strata=strata, patients=patients, sites=sites))
    notes += _absent_strata(parts, strata.names, counts, unit)
    return Folds(
        source=source,
        table=table,
        folds=folds,
        patients=patients,
        patients_from=patients_from,
        sites=sites,
        sites_from=None if sites is None else sites_from,
        options=options,
        parts=tuple(parts),
        imbalance=division.imbalance,
        least_imbalance=division.bound,
        notes=tuple(notes),
    )


def _patients_from(source: TextTable, table: LabelTable, barcodes: Barcodes) -> Origin:
    """Return where the patients are read from: a column comes before names."""
    if table.groups is not None:
        column = next(c for c in source.columns if c not in table.ignored and _is_group(c))
        return Origin(kind="column", column=column, bags=len(table.bags))
    if barcodes.named:
        return Origin(kind="names", forms=barcodes.forms, bags=barcodes.named)
    return Origin(kind="bags", bags=0)


def _is_group(column: str) -> bool:
    """Return whether a column is that of groups, by one of its names."""
    return SYNONYMS.get(column, column) == "group"


def _sites_from(source: TextTable, barcodes: Barcodes, options: FoldOptions) -> Origin | None:
    """Return where the sites are read from: a column comes before names; None if nowhere.

    Raises:
        TableError: the table lacks the column that the user names.
    """
    column = options.site or SITE
    if column in source.columns:
        bags = sum(not is_missing(cell) for cell in source.frame[column])
        return Origin(kind="column", column=column, bags=bags)
    if options.site is not None:
        raise TableError(
            f"{source.path} has no column {column!r} (--site): it has "
            f"{', '.join(source.columns)}.{hint(column, source.columns)}"
        )
    bags = sum(site is not None for site in barcodes.sites)
    if bags == 0:
        return None
    return Origin(kind="names", forms=("TCGA",), bags=bags)


def _site_count(source: TextTable, barcodes: Barcodes, origin: Origin) -> int:
    """Return how many different sites are stated."""
    if origin.kind == "names":
        return len({site for site in barcodes.sites if site is not None})
    return len({cell for cell in source.frame[origin.column] if not is_missing(cell)})


def _read_sites(
    source: TextTable, table: LabelTable, barcodes: Barcodes, origin: Origin | None
) -> tuple[str, ...]:
    """Return the site of each bag.

    Raises:
        TableError: the site of a bag is not stated; names lines or bags.
    """
    if origin is None:
        raise TableError(
            f"{table.where} states no sites: it has no column {SITE!r}, and the names are not "
            "those of TCGA. Name the column with --site"
        )
    if origin.kind == "names":
        without = [bag for bag, s in zip(table.bags, barcodes.sites, strict=True) if s is None]
        if without:
            raise TableError(
                f"{table.where} has no column {SITE!r}, and the names of "
                f"{counted(len(without), 'bag')} state no site as those of TCGA do "
                f"({listed(without)}). Name the column with --site"
            )
        return tuple(site for site in barcodes.sites if site is not None)
    cells: list[str] = source.frame[origin.column].tolist()
    lines: list[int] = source.frame.index.tolist()
    empty = [line for line, cell in zip(lines, cells, strict=True) if is_missing(cell)]
    if empty:
        raise TableError(
            f"{table.where} states no site ({origin.column!r}) in {numbered_lines(empty)}: a bag "
            "of an unknown site may be of any. Add the site, or leave these lines out"
        )
    return tuple(cells)


def _strata(table: LabelTable) -> Strata:
    """Return what is balanced, without what no bag has.

    Bags without a label are a stratum of their own, which is not needed.

    Raises:
        TableError: no bag has a label.
    """
    is_labelled = np.array([value is not None for value in table.values])
    if not is_labelled.any():
        raise TableError(f"{table.where} gives no bag a label: nothing can be balanced")
    task_strata = table.of_task.labels.fold_strata(table.y(table.bags), table.classes)
    names = [stratum.name for stratum in task_strata]
    needed = [stratum.needed for stratum in task_strata]
    columns: list[np.ndarray] = []
    for stratum in task_strata:
        column = np.zeros(len(table.bags))
        column[is_labelled] = stratum.members
        columns.append(column)
    if not is_labelled.all():
        names.append(NO_LABEL)
        needed.append(False)
        columns.append(np.where(is_labelled, 0.0, 1.0))
    return Strata(names, np.column_stack(columns), np.array(needed))


def _units(patients: Sequence[str], sites: Sequence[str] | None) -> Int[np.ndarray, " bags"]:
    """Return the number of the unit of each bag, which stays whole: its patient, or its site.

    Sites that share a patient are one unit.
    """
    patient_names, patient_numbers = np.unique(np.array(patients), return_inverse=True)
    if sites is None:
        return patient_numbers
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    site_names, site_numbers = np.unique(np.array(sites), return_inverse=True)
    nodes = len(patient_names) + len(site_names)
    edges = (patient_numbers, len(patient_names) + site_numbers)
    graph = coo_matrix((np.ones(len(patients)), edges), shape=(nodes, nodes))
    _, components = connected_components(graph, directed=False)
    return components[patient_numbers].astype(np.int64)


def _sum_by(
    units: Int[np.ndarray, " bags"], members: Float[np.ndarray, "bags strata"]
) -> Float[np.ndarray, "units strata"]:
    """Return how many bags of each stratum each unit has."""
    counts = np.zeros((int(units.max()) + 1, members.shape[1]))
    np.add.at(counts, units, members)
    return counts


def _by_site(
    members: Float[np.ndarray, "bags strata"], sites: Sequence[str]
) -> Float[np.ndarray, "bags more_strata"]:
    """Return the bags of each site as strata, all of them and within each stratum."""
    columns: list[np.ndarray] = []
    for site in sorted(set(sites)):
        is_of_site = np.array([s == site for s in sites], np.float64)[:, None]
        columns.append(is_of_site)
        columns.append(members * is_of_site)
    strata = np.column_stack(columns)
    return strata[:, strata.any(0)]


def _check_unit_count(table: LabelTable, units: int, *, unit: str, options: FoldOptions) -> None:
    """Refuse fewer patients or sites than parts.

    Raises:
        TableError: there are fewer.
    """
    if units >= len(options.shares):
        return
    kept_apart = "" if unit == "patient" else " that can be kept apart"
    advice = "" if unit == "patient" else ", or --sites spread"
    of_test = " and a test part" if options.test_share else ""
    raise TableError(
        f"{table.where} has {counted(units, unit)}{kept_apart}, too few for {options.folds} "
        f"folds{of_test}: give fewer --folds{advice}"
    )


def _check_holders(
    table: LabelTable,
    strata: Strata,
    *,
    units: Int[np.ndarray, " bags"],
    sites: Sequence[str] | None,
) -> None:
    """Refuse a class whose bags are all of one patient, or of one site that is kept apart.

    Raises:
        TableError: there is one; names the class and the patient or site.
    """
    unit = "patient" if sites is None else "site"
    advice = "leave them out" if sites is None else "leave them out, or give --sites spread"
    for name, column, is_needed in zip(strata.names, strata.members.T, strata.needed, strict=True):
        rows = np.flatnonzero(column).tolist()
        if not is_needed or len(set(units[rows].tolist())) > 1:
            continue
        holders = sorted({table.group(row) if sites is None else sites[row] for row in rows})
        raise TableError(
            f"{table.where}: all {counted(len(rows), 'bag')} of {name!r} are of one {unit} "
            f"({listed(holders)}), so that no folds can both train and test on them: {advice}"
        )


def _site_notes(
    sites: Sequence[str], units: Int[np.ndarray, " bags"], options: FoldOptions
) -> list[FoldNote]:
    """Return notes on sites that share patients, and on those larger than a fold."""
    notes: list[FoldNote] = []
    fold_share = float(options.shares[0])
    for unit, bags in enumerate(np.bincount(units).tolist()):
        rows = np.flatnonzero(units == unit).tolist()
        names = tuple(sorted({sites[row] for row in rows}))
        share = bags / len(sites)
        if len(names) > 1:
            notes.append(JoinedSites(names))
        # one bag more than its share is rounding
        if bags > np.ceil(fold_share * len(sites)):
            notes.append(LargeSite(names, share, fold_share))
    return notes


def _number(
    table: LabelTable,
    parts: Int[np.ndarray, " bags"],
    options: FoldOptions,
    rng: np.random.Generator,
) -> tuple[int | None, ...]:
    """Return the fold of each bag, numbered so that all classes train whichever fold is tested.

    Raises:
        TableError: no numbering does that; says which class would not train.
    """
    labelled = [row for row, value in enumerate(table.values) if value is not None]
    error = None
    for _ in range(NUMBERINGS):
        numbers = rng.permutation(options.folds).tolist()
        folds = tuple(numbers[part] if part < options.folds else None for part in parts)
        fold_rows = [row for row in labelled if folds[row] is not None]
        chosen = select_rows(table, fold_rows)
        chosen_folds = tuple(fold for fold in (folds[row] for row in fold_rows) if fold is not None)
        try:
            fold_splits(replace(chosen, folds=chosen_folds))
        except TableError as e:
            error = e
        else:
            return folds
    assert error is not None
    raise error


def _part_counts(
    number: int | None,
    rows: Sequence[int],
    *,
    strata: Strata,
    patients: Sequence[str],
    sites: Sequence[str] | None,
) -> PartCounts:
    """Count what a fold contains, or the test part, which has no number."""
    sums = strata.members[rows].sum(0).astype(int).tolist()
    return PartCounts(
        part="test" if number is None else f"fold {number}",
        bags=len(rows),
        patients=len({patients[row] for row in rows}),
        sites=None if sites is None else len({sites[row] for row in rows}),
        strata=dict(zip(strata.names, sums, strict=True)),
    )


def _absent_strata(
    parts: Sequence[PartCounts],
    names: Sequence[str],
    counts: Float[np.ndarray, "units strata"],
    unit: str,
) -> list[FoldNote]:
    """Return notes on what some parts have no bag of."""
    notes: list[FoldNote] = []
    for name, column in zip(names, counts.T, strict=True):
        without = tuple(part.part for part in parts if part.strata[name] == 0)
        if without and name != NO_LABEL:
            notes.append(AbsentStratum(name, unit, int((column > 0).sum()), without))
    return notes
