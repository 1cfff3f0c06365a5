"""LocalMIL: check sets of bags with instance labels, and write them in one form for a benchmark.

OUT/<set>/features      a link to the folder of the feature files
OUT/<set>/labels.csv    bag,label[,group],fold
OUT/<set>/card.json     what the set is, its counts, and a fingerprint of its bags; written last
"""

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any, Literal

import yaml

from ..core import (
    GraphOptions,
    as_record,
    check_replaceable,
    note_written,
    open_output,
    read_record,
    remove_written,
    remove_written_folder,
    write_json,
)
from ..errors import InputError, TableError, hint
from ..jobs import replacing_folder
from .bag_set import BagSet
from .labels import LabelTable, read_table, write_table
from .opening import open_bags
from .splits import fold_splits

CARD, LABELS, FEATURES, DESCRIPTION = "card.json", "labels.csv", "features", "set.yaml"
KNOWN = Path(__file__).with_name("localmil.yaml")
AXES = {"chain": (1,), "grid": (2,), "knn": (1, 2, 3), "none": (None, 1, 2, 3)}
"""The numbers of columns of coordinates that each graph can use."""
OnSet = Callable[[str], None]
"""Called with the name of a set before it is prepared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetDescription:
    """Where a set comes from, and how its bags are used."""

    title: str
    source: str
    licence: str
    commit: str
    """Version of the source: a commit, a release or a date."""
    graph: Literal["chain", "grid", "knn", "none"]
    """`chain` needs coordinates with one axis, `grid` with two, `knn` any; see `GraphOptions`."""
    splits: Literal["fold"] = "fold"
    """The column of labels.csv with the parts; each fold is tested once."""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetCard:
    """A prepared set: its description, counts and fingerprint."""

    name: str
    description: SetDescription
    bags: int
    positive_bags: int
    groups: int | None
    """Number of groups; None if labels.csv has no column `group`, so that each bag is its own."""
    folds: int
    labelled_bags: int
    """Number of bags with instance labels."""
    instances: int
    positive_instances: int
    features: int
    """Length of a feature vector."""
    fingerprint: str
    """SHA-256 of every bag's name, label, and numbers of instances and of positive ones."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def prepare_localmil(
    root: Path | str,
    out: Path | str,
    *,
    sets: Sequence[str] | None = None,
    on_set: OnSet | None = None,
) -> list[SetCard]:
    """Check every set below a folder, and write it to `out`/<set>.

    A set is a folder with `features/` and `labels.csv` (bag,label[,group],fold). It needs a
    `set.yaml` with the fields of `SetDescription`, unless `localmil.yaml` of this package knows it
    by name. The features stay where they are: they are linked, or copied where the file system has
    no links.

    Args:
        root: the folder of the sets.
        out: where they are written; sets that are already there are checked and written again.
        sets: names of the sets; None for all.
        on_set: called before each set.

    Raises:
        OutputExists: what would be written is there already, and probsa did not write it.
        InputError: `out` holds the set itself, there is no set, a name is unknown, a set has no or
            an invalid description, no instance labels, no negative bags, or coordinates that do not
            fit its graph.
        TableError: labels.csv is invalid, has no folds, or a group in two folds.
    """
    root, out = Path(root), Path(out)
    found = {p.parent.name: p.parent for p in sorted(root.glob(f"*/{LABELS}"))}
    if not found:
        raise InputError(
            f"{root} has no sets: expected folders with {FEATURES}/ and {LABELS}, as "
            f"{root / 'my_set' / LABELS}"
        )
    unknown = [name for name in sets or () if name not in found]
    if unknown:
        raise InputError(f"{root} has no set {unknown[0]!r}: it has {', '.join(found)}")
    cards = []
    for name in sets or found:
        if on_set is not None:
            on_set(name)
        source, folder = found[name], out / name
        if folder.resolve() == source.resolve():
            raise InputError(f"{folder} is the set itself: give another folder with --out")
        description, table = describe(name, source), read_table(source / LABELS)
        bags = open_bags(source / FEATURES, graph=GraphOptions(kind=description.graph))
        _check_table(table)
        card = _card(name, description, bags, table)
        open_output(folder, earlier=_earlier_files)
        for path in (folder / LABELS, folder / CARD):
            check_replaceable(path)
        _link(source / FEATURES, folder / FEATURES)
        write_table(folder / LABELS, table, table.bags)
        write_json(folder / CARD, card.to_dict())
        cards.append(card)
    return cards


def _earlier_files(folder: Path) -> list[Path]:
    """List the files that a version of probsa without ledgers wrote, if it did."""
    try:
        read_record(SetCard, folder / CARD, complete=True)
    except InputError:  # there is none, or it is another file
        return []
    known = [folder / CARD, folder / LABELS, folder / FEATURES]
    return [p for p in known if p.is_symlink() or p.is_file()]


def _link(features: Path, path: Path) -> None:
    """Link to a folder of features, or copy it; an earlier link or copy is replaced."""
    if path.is_symlink() or not path.is_dir():
        remove_written(path)
    else:
        remove_written_folder(path)
    try:
        path.symlink_to(features.resolve(), target_is_directory=True)
        note_written(path)
    except OSError:
        with replacing_folder(path) as new:
            shutil.copytree(features, new, dirs_exist_ok=True)


def read_card(folder: Path | str) -> SetCard | None:
    """Return the card of a prepared set; None if the folder has none.

    Raises:
        InputError: the card is damaged.
    """
    folder = Path(folder)
    path, advice = folder / CARD, "prepare the set again with `probsa dataset localmil`"
    return read_record(SetCard, path, advice=advice, complete=True) if path.is_file() else None


def describe(name: str, folder: Path) -> SetDescription:
    """Return the description of a set, from its `set.yaml` or from the known sets."""
    names = [f.name for f in fields(SetDescription)]
    path = own = folder / DESCRIPTION
    expected = f"the keys {', '.join(names)}"
    if own.is_file():
        given, where = _read_yaml(path), str(path)
    else:
        given, where = _read_yaml(KNOWN).get(name), f"{KNOWN.name}, {name}"
        if given is None:
            raise InputError(f"the set {name!r} has no description: write {own} with {expected}")
    if not isinstance(given, dict):
        raise InputError(f"{where} has {given!r}: expected {expected}")
    texts: dict[str, str] = {}
    for key, value in given.items():
        if key not in names:
            advice = " Its heading has the key 'title'." if key == "name" else hint(str(key), names)
            raise InputError(f"{where} has the unknown key {key!r}.{advice} Expected {expected}")
        if isinstance(value, bool) or not isinstance(value, str | int | float | date | None):
            raise InputError(
                f"{key} in {where} is {value!r}: expected a text; put it in quotes, for example "
                f'`{key}: "{value}"`'
            )
        texts[key] = "" if value is None else str(value).strip()
    for f in fields(SetDescription):
        if f.default is MISSING and not texts.get(f.name):
            raise InputError(f"{where} lacks {f.name!r}: expected {expected}")
    return as_record(SetDescription, texts, where=where, advice="correct it")


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1},"
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "no YAML"
        raise InputError(
            f"{path}{line} cannot be read as YAML: {problem}. Write one `key: text` per line, and "
            "put a text that contains a colon in quotes"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a date that does not exist
        raise InputError(f"{path} cannot be read: {error}") from error


def _check_table(table: LabelTable) -> None:
    """Refuse a table without folds of both classes, or with a group in two folds."""
    if table.folds is None:
        raise TableError(
            f"{table.where} has no column 'fold': LocalMIL tests each bag once, so give every bag "
            f"the number of its fold{table.similar_column('fold')}"
        )
    if set(table.labels) != {0, 1}:
        raise InputError(
            f"{table.where} has the labels {sorted({str(y) for y in table.labels})}: LocalMIL "
            "needs negative (0) and positive (1) bags, and no others"
        )
    for split in fold_splits(table):
        if len(labels := set(table.strata(split.test))) < 2:
            raise TableError(
                f"{split.origin.partition(' tests')[0]} has bags of class {labels} only: each fold "
                "needs positive and negative bags"
            )


def _card(name: str, description: SetDescription, bags: BagSet, table: LabelTable) -> SetCard:
    """Read every bag, check it, and count."""
    digest, labelled, instances, positives = hashlib.sha256(), 0, 0, 0
    for bag_name, y in sorted(zip(table.bags, table.labels, strict=True)):
        bag = bags.bag(bag_name)
        labels, axes = bag.instance_labels, None if bag.coords is None else bag.coords.shape[1]
        if axes not in AXES[description.graph]:
            has = "no coordinates" if axes is None else f"coordinates with {axes} axes"
            raise InputError(
                f"bag {bag_name!r} has {has}, but the description says graph: {description.graph}"
            )
        positive = 0 if labels is None else int((labels > 0).sum())
        if positive and not y:
            raise InputError(
                f"bag {bag_name!r} of {name} is negative, but {positive} of its instances are "
                "positive: correct labels.csv or the instance labels"
            )
        digest.update(f"{bag_name},{y or 0},{len(bag)},{positive}\n".encode())
        labelled, instances = labelled + (labels is not None), instances + len(bag)
        positives += positive
    if not positives:
        raise InputError(
            f"no bag of {name} has a positive instance label: LocalMIL measures where a model sees "
            "evidence, so store instance_labels in the feature files"
        )
    return SetCard(
        name=name,
        description=description,
        bags=len(table.bags),
        positive_bags=table.labels.count(1),
        groups=None if table.groups is None else len(set(table.groups)),
        folds=len(set(table.folds or ())),
        labelled_bags=labelled,
        instances=instances,
        positive_instances=positives,
        features=bags.in_dim,
        fingerprint=digest.hexdigest(),
    )
