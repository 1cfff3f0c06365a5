"""Bags of one tool as files of another, with a table of what could not be carried.

A bag that is damaged, or for which the other tool has no place, is named; the rest is done.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..core import write_csv
from ..errors import BagError, EmptyBag, GraphError, InputError, OutputExists
from .bag_set import BagSet
from .choices import SourceFormat, TargetFormat
from .completion import completed
from .formats.torchmil import TorchmilBags
from .labels import PARTS, Table, read_table
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
    """What the files may not say, and how the result is to be."""

    slide_mpp: float | str | Path | None = None
    """µm per level-0 pixel: of all slides, or a table `slide,mpp`."""
    labels: Path | None = None
    """Table of labels, to be written as the target's; torchmil's own are taken without one."""
    classes: tuple[str, ...] | None = None
    """Names of the classes in order, where labels are names."""
    feature_set: str | None = None
    """Which folder of features, where there are several."""
    encoder: str | None = None
    """What the features were made with, where the files do not say."""
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What became of one bag."""

    bag: str
    status: Status
    instances: int | None = None
    file: str = ""
    reason: str = ""
    lost: tuple[str, ...] = ()
    """What could not be carried, or is uncertain."""

    def to_dict(self) -> dict[str, object]:
        """As in the table, but with the losses apart."""
        return {k: getattr(self, k) for k in COLUMNS}


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversion:
    """What became of a folder."""

    out: Path
    rows: tuple[Row, ...]
    lost: tuple[str, ...]
    """Of the table of labels."""

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Bags that could not be converted, with the reason."""
        return [(r.bag, r.reason) for r in self.rows if r.status == "failed"]

    def count(self, status: Status) -> int:
        """Bags of that status."""
        return sum(r.status == status for r in self.rows)

    @property
    def report(self) -> Path:
        """The table, one row a bag."""
        return self.out / REPORT

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
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
        """What could not be carried, and of how many bags."""
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
    """Writes every bag of `source` below `out`, and `conversion.csv` beside them.

    Raises:
        BagError: no bags, or those of another tool than `source_format` says.
        OutputExists: a bag is in `out` already and `overwrite` is not set.
        InputError, TableError: the options do not fit.
    """
    options = options or ConversionOptions()
    kind = writer_class(target_format)
    if out.resolve() == source.resolve():
        raise InputError(f"{out} is the source itself: give another folder with --out")
    given = resolutions_of(options.slide_mpp)
    bags = open_bags(source, features=options.feature_set)
    if source_format not in bags.formats():
        raise BagError(
            f"{source} does not look like {source_format}'s files but like "
            f"{' or '.join(sorted(bags.formats()))}'s: give that with --from"
        )
    if bags.unit == "um" and options.slide_mpp is None:
        raise InputError(
            f"the corners in {source} are in µm, and {target_format}'s are in level-0 pixels: give "
            "--slide-mpp, µm per pixel of the slides, or a table slide,mpp. Training needs neither"
        )
    table = _table(options, bags)
    encoder, stride = _stated(bags)
    writer = kind(out, encoder=options.encoder or encoder, stride=stride)
    _refuse_present(writer, bags.names, overwrite=options.overwrite)
    rows = []
    for name in bags.names:
        rows.append(_row(bags, name, writer, given=given, encoder=encoder))
        if on_bag is not None:
            on_bag(len(rows), len(bags))
    done = [r.bag for r in rows if r.status == "converted"]
    lost = writer.write_labels(table, done) if table is not None and done else []
    if table is not None:
        rows = _unlabelled(rows, table)
    result = Conversion(out=out, rows=tuple(rows), lost=tuple(lost))
    write_csv(result.report, COLUMNS, [r.to_dict() | {"lost": "; ".join(r.lost)} for r in rows])
    return result


def _row(
    bags: BagSet, name: str, writer: Writer, *, given: Resolutions, encoder: str | None
) -> Row:
    """Converts one bag; what is wrong with it becomes its row."""
    try:
        outgoing, said = completed(bags, name, given=given)
        own, width = outgoing.metadata.encoder, outgoing.stored.features.shape[1]
        if own != encoder or width != bags.in_dim:
            raise BagError(
                f"bag {name!r} has {width} features an instance of {own or 'an unnamed encoder'}, "
                f"the first one {bags.in_dim} of {encoder or 'an unnamed encoder'}: convert the "
                "bags of each encoder by themselves"
            )
        path, lost = writer.write(outgoing)
    except EmptyBag as e:
        return Row(bag=name, status="empty", instances=0, reason=str(e))
    except (BagError, GraphError) as e:
        return Row(bag=name, status="failed", reason=str(e))
    return Row(
        bag=name,
        status="converted",
        instances=len(outgoing.stored.features),
        file=path.relative_to(writer.out).as_posix(),
        lost=tuple(dict.fromkeys([*said, *lost])),
    )


def _stated(bags: BagSet) -> tuple[str | None, float | None]:
    """The encoder of the first bag that can be read, and the commonest stride that is stated."""
    encoder, seen, strides = None, False, Counter[float]()
    for name in bags.names:
        try:
            metadata = bags.metadata(name)
        except (BagError, EmptyBag):  # its row says so
            continue
        if not seen:
            encoder, seen = metadata.encoder, True
        if metadata.size_level0:
            share = (metadata.overlap or 0.0) / metadata.patch_size if metadata.patch_size else 0.0
            strides[metadata.size_level0 * (1 - share)] += 1
    return encoder, strides.most_common(1)[0][0] if strides else None


def _refuse_present(writer: Writer, names: Sequence[str], *, overwrite: bool) -> None:
    there = sorted(writer.present() & set(names))
    if there and not overwrite:
        shown = ", ".join(there[:SHOWN]) + (" …" if len(there) > SHOWN else "")
        raise OutputExists(
            f"{writer.out} holds {len(there)} of these bags already ({shown}): give another --out, "
            "or --overwrite to replace them"
        )


def _table(options: ConversionOptions, bags: BagSet) -> Table | None:
    if options.labels is not None:
        return read_table(options.labels, classes=options.classes, labels_required=False)
    if not isinstance(bags, TorchmilBags):
        return None
    labels = {name: bags.label(name) for name in bags.names}
    if all(y is None for y in labels.values()):
        return None
    parts = {b: p if p in PARTS else None for b, p in bags.parts().items()}
    classes = max((y for y in labels.values() if y is not None), default=1) + 1
    return Table(
        path=None,
        bags=bags.names,
        labels=tuple(labels.values()),
        splits=tuple(parts.get(b) for b in bags.names) if parts else None,
        classes=tuple(str(c) for c in range(max(2, classes))),
    )


def _unlabelled(rows: Sequence[Row], table: Table) -> list[Row]:
    labelled = {b for b, y in zip(table.bags, table.labels, strict=True) if y is not None}
    return [
        replace(r, lost=(*r.lost, f"label (none in {table.where})"))
        if r.status == "converted" and r.bag not in labelled
        else r
        for r in rows
    ]
