"""Convert the bags of one tool to the files of another, and report what was lost.

A bag that is damaged, or that the target format cannot represent, is reported; the rest is
converted.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..core import write_csv
from ..errors import BagError, EmptyBag, GraphError, InputError, OutputExists
from ..jobs import sole_writer, sweep
from .bag_set import BagSet
from .choices import SourceFormat, TargetFormat
from .completion import completed
from .formats.torchmil import TorchmilBags
from .labels import LabelTable, read_table
from .names import SPLIT_PARTS
from .opening import open_bags
from .resolutions import Resolutions, resolutions_of
from .writers.base import Writer
from .writers.registry import writer_class

Status = Literal["converted", "empty", "failed"]

REPORT = "conversion.csv"
COLUMNS = ("bag", "status", "instances", "file", "reason", "lost")
SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionOptions:
    """Information that the source files may lack, and options for the output."""

    slide_mpp: float | str | Path | None = None
    """µm per level-0 pixel: one value for all slides, or a table `slide,mpp`."""
    labels: Path | None = None
    """Label table to convert; None: torchmil's labels are converted, if that is the source."""
    classes: tuple[str, ...] | None = None
    """Names of the classes in order, if labels are names."""
    feature_set: str | None = None
    """Which folder of features to convert, if there are several."""
    encoder: str | None = None
    """Encoder of the features, if the files do not state it."""
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The outcome for one bag."""

    bag: str
    status: Status
    instances: int | None = None
    file: str = ""
    reason: str = ""
    lost: tuple[str, ...] = ()
    """What could not be converted, or is uncertain."""

    def to_dict(self) -> dict[str, object]:
        """Return the columns of the report, with `lost` as a tuple."""
        return {k: getattr(self, k) for k in COLUMNS}


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversion:
    """The outcome for a folder."""

    out: Path
    rows: tuple[Row, ...]
    lost: tuple[str, ...]
    """Parts of the label table that could not be converted."""

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
            "lost": list(self.lost),
            "bags": [r.to_dict() for r in self.rows],
        }

    def losses(self) -> Counter[str]:
        """Count the bags affected by each loss."""
        return Counter(text for r in self.rows for text in r.lost)


def convert(
    source: Path,
    out: Path,
    *,
    source_format: SourceFormat,
    target_format: TargetFormat,
    options: ConversionOptions | None = None,
    on_bag: Callable[[int, int], None] | None = None,
) -> Conversion:
    """Convert every bag of `source` into the folder `out`, and write `conversion.csv` there.

    Raises:
        BagError: there are no bags, or they are not in `source_format`.
        OutputExists: `out` already contains one of the bags and `overwrite` is not set.
        InputError, TableError: the options do not fit the bags.
    """
    options = options or ConversionOptions()
    writer_type = writer_class(target_format)
    if out.resolve() == source.resolve():
        raise InputError(f"{out} is the source itself: give another folder with --out")
    resolutions = resolutions_of(options.slide_mpp)
    bags = open_bags(source, features=options.feature_set)
    if source_format not in bags.formats():
        raise BagError(
            f"{source} does not look like {source_format}'s files but like "
            f"{' or '.join(sorted(bags.formats()))}'s: give the right format with --from"
        )
    if bags.unit == "um" and options.slide_mpp is None:
        raise InputError(
            f"the corners in {source} are in µm, but {target_format} needs level-0 pixels: give "
            "--slide-mpp, µm per pixel or a table slide,mpp. Training accepts both units"
        )
    table = _label_table(options, bags)
    encoder, stride = _common_metadata(bags)
    writer = writer_type(out, encoder=options.encoder or encoder, stride=stride)
    _refuse_present(writer, bags.names, overwrite=options.overwrite)
    with sole_writer(out):
        sweep(out, guard=lambda path: path if _is_output(path, bags.names) else None)
        rows = []
        for name in bags.names:
            rows.append(_convert_bag(bags, name, writer, resolutions=resolutions, encoder=encoder))
            if on_bag is not None:
                on_bag(len(rows), len(bags))
        return _finished(writer, rows, table)


def _finished(writer: Writer, rows: list[Row], table: LabelTable | None) -> Conversion:
    """Write the labels of the converted bags, and the report."""
    converted = [r.bag for r in rows if r.status == "converted"]
    lost = writer.write_labels(table, converted) if table is not None and converted else []
    if table is not None:
        rows = _with_missing_labels(rows, table)
    result = Conversion(out=writer.out, rows=tuple(rows), lost=tuple(lost))
    write_csv(result.report, COLUMNS, [r.to_dict() | {"lost": "; ".join(r.lost)} for r in rows])
    return result


def _is_output(path: Path, names: Sequence[str]) -> bool:
    """Return whether a file is one that the conversion of these bags writes."""
    known = {*names, *(f"{name}_patches" for name in names)}
    return path.name in (REPORT, "labels.csv", "splits.csv") or path.stem in known


def _convert_bag(
    bags: BagSet, name: str, writer: Writer, *, resolutions: Resolutions, encoder: str | None
) -> Row:
    """Convert one bag; an error becomes the reason in its row."""
    try:
        outgoing, remarks = completed(bags, name, resolutions=resolutions)
        bag_encoder, width = outgoing.metadata.encoder, outgoing.stored.features.shape[1]
        if bag_encoder != encoder or width != bags.in_dim:
            raise BagError(
                f"bag {name!r} has {width} features per instance from "
                f"{bag_encoder or 'an unnamed encoder'}, the first bag {bags.in_dim} from "
                f"{encoder or 'an unnamed encoder'}: convert the bags of each encoder separately"
            )
        path, lost = writer.write(outgoing)
    except EmptyBag as error:
        return Row(bag=name, status="empty", instances=0, reason=str(error))
    except (BagError, GraphError) as error:
        return Row(bag=name, status="failed", reason=str(error))
    return Row(
        bag=name,
        status="converted",
        instances=len(outgoing.stored.features),
        file=path.relative_to(writer.out).as_posix(),
        lost=tuple(dict.fromkeys([*remarks, *lost])),
    )


def _common_metadata(bags: BagSet) -> tuple[str | None, float | None]:
    """Return the encoder of the first readable bag, and the most common stated stride."""
    encoder, encoder_read, strides = None, False, Counter[float]()
    for name in bags.names:
        try:
            metadata = bags.metadata(name)
        except (BagError, EmptyBag):  # reported in the bag's row
            continue
        if not encoder_read:
            encoder, encoder_read = metadata.encoder, True
        if metadata.size_level0:
            relative_overlap = (
                (metadata.overlap or 0.0) / metadata.patch_size if metadata.patch_size else 0.0
            )
            strides[metadata.size_level0 * (1 - relative_overlap)] += 1
    return encoder, strides.most_common(1)[0][0] if strides else None


def _refuse_present(writer: Writer, names: Sequence[str], *, overwrite: bool) -> None:
    present = sorted(writer.present() & set(names))
    if present and not overwrite:
        shown = ", ".join(present[:SHOWN]) + (" …" if len(present) > SHOWN else "")
        raise OutputExists(
            f"{writer.out} already holds {len(present)} of these bags ({shown}): give another "
            "--out, or --overwrite to replace them"
        )


def _label_table(options: ConversionOptions, bags: BagSet) -> LabelTable | None:
    if options.labels is not None:
        return read_table(options.labels, classes=options.classes, labels_required=False)
    if not isinstance(bags, TorchmilBags):
        return None
    labels = {name: bags.label(name) for name in bags.names}
    if all(y is None for y in labels.values()):
        return None
    parts = {b: p if p in SPLIT_PARTS else None for b, p in bags.parts().items()}
    classes = max((y for y in labels.values() if y is not None), default=1) + 1
    return LabelTable(
        path=None,
        bags=bags.names,
        labels=tuple(labels.values()),
        splits=tuple(parts.get(b) for b in bags.names) if parts else None,
        classes=tuple(str(c) for c in range(max(2, classes))),
    )


def _with_missing_labels(rows: Sequence[Row], table: LabelTable) -> list[Row]:
    labelled = {b for b, y in zip(table.bags, table.labels, strict=True) if y is not None}
    return [
        replace(r, lost=(*r.lost, f"label (none in {table.where})"))
        if r.status == "converted" and r.bag not in labelled
        else r
        for r in rows
    ]
