"""Convert the bags of other tools to probsa's layout, and report what was lost.

A bag that is damaged is reported; the rest is converted.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ..core import (
    StoredBag,
    TextTable,
    as_paths,
    check_file_name,
    check_replaceable,
    graphs,
    hdf5_files,
    open_output,
    remove_leftovers,
    shortened,
    write_csv,
)
from ..errors import (
    BagError,
    EmptyBag,
    GraphError,
    InputError,
    OutputExists,
    TableError,
)
from ..slides import read_resolutions
from .bag_set import BagSet
from .choices import SourceFormat
from .formats.probsa import write_converted
from .labels import LabelTable, match_bags, read_table, write_table
from .metadata import Metadata
from .names import nearest
from .opening import open_bags

Status = Literal["converted", "empty", "failed"]

REPORT = "conversion.csv"
TABLE = "labels.csv"
SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionOptions:
    """Information that the source files may lack, and options for the output."""

    slide_mpp: float | str | Path | None = None
    """µm per level-0 pixel: one value for all slides, or a table `slide,mpp`, which may name a
    slide with or without the suffix of its file."""
    labels: Path | None = None
    """Label table to convert; None: torchmil's labels are converted, if that is the source."""
    classes: tuple[str, ...] | None = None
    """Names of the classes in order, if labels are names."""
    feature_set: str | None = None
    """Which folder of features to convert, if there are several."""
    encoder: str | None = None
    """Encoder of the features, if the files do not state it."""
    overwrite: bool = False

    def __post_init__(self) -> None:
        as_paths(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The outcome for one bag; the fields are the columns of the report."""

    bag: str
    status: Status
    instances: int | None = None
    file: str = ""
    reason: str = ""
    lost: tuple[str, ...] = ()
    """What could not be converted, or is uncertain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversion:
    """The outcome for a folder."""

    out: Path
    rows: tuple[Row, ...]

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Return the bags that could not be converted, with the reasons."""
        return [(r.bag, r.reason) for r in self.rows if r.status == "failed"]

    def count(self, status: Status) -> int:
        """Return the number of bags with a status."""
        return sum(r.status == status for r in self.rows)

    @property
    def report(self) -> Path:
        """Path of the report, a table with one row per bag."""
        return self.out / REPORT

    def to_dict(self) -> dict[str, object]:
        """Return the outcome as JSON-compatible values."""
        return {
            "out": str(self.out),
            "report": str(self.report),
            "converted": self.count("converted"),
            "empty": self.count("empty"),
            "failed": self.count("failed"),
            "bags": [asdict(r) for r in self.rows],
        }

    def losses(self) -> Counter[str]:
        """Count the bags affected by each loss."""
        return Counter(text for r in self.rows for text in r.lost)


def convert(
    source: Path | str,
    out: Path | str,
    *,
    source_format: SourceFormat,
    options: ConversionOptions | None = None,
    on_bag: Callable[[int, int], None] | None = None,
) -> Conversion:
    """Convert every bag of `source` into the folder `out`, and write `conversion.csv` there.

    Raises:
        BagError: there are no bags, or they are not in `source_format`.
        OutputExists: `out` already contains one of the bags and `overwrite` is not set.
        InputError, TableError: the options do not fit the bags.
    """
    source = Path(source)
    out = Path(out)
    options = options or ConversionOptions()
    if out.resolve() == source.resolve():
        raise InputError(f"{out} is the source itself: give another folder with --out")
    slide_mpp = None if options.slide_mpp is None else read_resolutions(options.slide_mpp)
    bags = open_bags(source, features=options.feature_set)
    if source_format not in bags.formats():
        raise BagError(
            f"{source} does not look like {source_format}'s files but like "
            f"{' or '.join(sorted(bags.formats()))}'s: give the right format with --from"
        )
    if bags.unit == "um" and slide_mpp is None:
        raise InputError(
            f"the corners in {source} are in µm, and converted ones are level-0 pixels: give "
            "--slide-mpp, µm per pixel or a table slide,mpp. Training accepts both units"
        )
    table = bags.label_table()
    if options.labels is not None:
        table = read_table(options.labels, classes=options.classes, labels_required=False)
        table = match_bags(table, bags.names)
    encoder = _first_encoder(bags)
    names = set(bags.names)
    present = sorted(names.intersection(path.stem for path in hdf5_files(out)))
    if present and not options.overwrite:
        examples = ", ".join(present[:SHOWN])
        if len(present) > SHOWN:
            examples += " …"
        raise OutputExists(
            f"{out} already holds {len(present)} of these bags ({examples}): give another --out, "
            "or --overwrite to replace them"
        )
    open_output(out, earlier=_earlier_files)
    check_replaceable(out / REPORT)
    if table is not None:
        check_replaceable(out / TABLE)
    files = [REPORT, TABLE, *(f"{name}.h5" for name in bags.names)]
    # a temporary file repeats a long name shortened
    shortened_names = {shortened(file) for file in files}
    remove_leftovers(out, own=lambda path: path.name in shortened_names)
    resolutions = _resolutions(slide_mpp, bags.names)
    rows: list[Row] = []
    for name in bags.names:
        row = _convert_bag(
            bags, name, out, encoder=encoder, resolutions=resolutions, options=options
        )
        rows.append(row)
        if on_bag is not None:
            on_bag(len(rows), len(bags))
    if table is not None:
        converted = [row.bag for row in rows if row.status == "converted"]
        if converted:
            write_table(out / TABLE, table, converted)
        rows = [_with_lost_label(row, table) for row in rows]
    result = Conversion(out=out, rows=tuple(rows))
    cells: list[dict[str, Any]] = [asdict(row) | {"lost": "; ".join(row.lost)} for row in rows]
    write_csv(result.report, list(cells[0]), cells)
    return result


def _with_lost_label(row: Row, table: LabelTable) -> Row:
    """Add to a converted bag's row that the table has no label of it, if that is so."""
    if row.status != "converted":
        return row
    if row.bag in table.bags and table.labels[table.bags.index(row.bag)] is not None:
        return row
    return replace(row, lost=(*row.lost, f"label (none in {table.where})"))


def _earlier_files(out: Path) -> list[Path]:
    """List the files that a version of probsa without ledgers wrote, by its report."""
    try:
        report = TextTable.read(out / REPORT)
    except TableError:  # there is none, or it is another table
        return []
    if report.columns != tuple(f.name for f in fields(Row)):
        return []
    files = [out / str(row["file"]) for row in report.rows if row.get("file")]
    return [out / REPORT, out / TABLE, *files]


def _resolutions(
    stated: float | Mapping[str, float] | None, names: Sequence[str]
) -> dict[str, float]:
    """Return the stated resolution of each bag; a file name without its suffix also counts."""
    if stated is None:
        return {}
    if not isinstance(stated, Mapping):
        return dict.fromkeys(names, stated)
    by_stem: dict[str, set[float]] = {}
    for slide, mpp in stated.items():
        by_stem.setdefault(Path(slide).stem, set()).add(mpp)
    unique = {stem: next(iter(mpps)) for stem, mpps in by_stem.items() if len(mpps) == 1}
    return unique | dict(stated)


def _convert_bag(
    bags: BagSet,
    name: str,
    out: Path,
    *,
    encoder: str | None,
    resolutions: Mapping[str, float],
    options: ConversionOptions,
) -> Row:
    """Convert one bag; an error becomes the reason in its row."""
    try:
        lost: list[str] = []
        mpp = resolutions.get(check_file_name(name))
        metadata = bags.metadata(name)
        bag = bags.stored(name)
        if bags.unit == "um" and mpp is None:
            raise BagError(
                f"bag {name!r}: its corners are in µm, and level-0 pixels need the resolution of "
                f"the slide, which the files do not hold. {options.slide_mpp} has no line for the "
                f"slide {name!r}.{nearest(name, list(resolutions))} Add one"
            )
        lost += metadata.remarks
        if metadata.unreadable:
            lost.append(f"{metadata.unreadable} instances flagged as unreadable (left out)")
        if bag.inferred_kind == "slide":
            file_mpp = metadata.mpp_level0
            if file_mpp is None:
                metadata = replace(metadata, mpp_level0=mpp)
            elif file_mpp and mpp and abs(mpp / file_mpp - 1) > graphs.DISTANCE_TOLERANCE:
                lost.append(f"resolution given ({mpp:g}; the file says {file_mpp:g})")
            if bag.coords is not None:
                bag, metadata = bags.at_level_0(bag, metadata, lost)
                bag, metadata = _with_spacing(bag, metadata, lost)
            metadata = metadata.completed()
        width = bag.features.shape[1]
        if metadata.encoder != encoder or width != bags.in_dim:
            raise BagError(
                f"bag {name!r} has {width} features per instance from "
                f"{metadata.encoder or 'an unnamed encoder'}, the first bag {bags.in_dim} from "
                f"{encoder or 'an unnamed encoder'}: convert the bags of each encoder separately"
            )
        encoder_name = options.encoder or encoder
        path = write_converted(out, bag, metadata, encoder=encoder_name, lost=lost)
    except EmptyBag as error:
        return Row(bag=name, status="empty", instances=0, reason=str(error))
    except (BagError, GraphError) as error:
        return Row(bag=name, status="failed", reason=str(error))
    return Row(
        bag=name,
        status="converted",
        instances=len(bag.features),
        file=path.name,
        lost=tuple(dict.fromkeys(lost)),
    )


def _with_spacing(
    stored: StoredBag, metadata: Metadata, remarks: list[str]
) -> tuple[StoredBag, Metadata]:
    """Complete the stride and the patch size so that they agree with the coordinates."""
    coords = torch.from_numpy(stored.coords)
    try:
        stride = graphs.check_stride(coords, stride=stored.stride, name=stored.name)
    except GraphError:
        stride = graphs.check_stride(coords, stride=None)
        side = metadata.size_level0 or 0.0
        if metadata.overlap is not None or stride >= side or metadata.patch_size is None:
            raise BagError(
                f"bag {stored.name!r}: its patches are stated to lie {stored.stride:g} apart, but "
                f"the coordinates say {stride:g}: the sizes belong to another run, or to another "
                "magnification. Correct them at the source"
            ) from None
        # CLAM has a separate option for the step, which its files do not state.
        metadata = replace(metadata, overlap=metadata.patch_size * (1 - stride / side))
        remarks.append(f"step between patches (not stated; {stride:g} pixels by the coordinates)")
    if metadata.size_level0 is None:
        if len(coords) < 2:
            raise BagError(
                f"bag {stored.name!r} has one patch, and nothing states its size, which cannot be "
                "inferred from one patch. Add the tool's file of patches, or leave the bag out"
            )
        remarks.append(f"patch size (not stated; {stride:g} level-0 pixels by the coordinates)")
        metadata = replace(metadata, size_level0=stride)
    return replace(stored, stride=stride), metadata


def _first_encoder(bags: BagSet) -> str | None:
    """Return the encoder of the first readable bag; None if it states none."""
    for name in bags.names:
        with suppress(BagError):  # reported in the bag's row
            return bags.metadata(name).encoder
    return None
