"""The data sets of a grid: those that it names, or those found in given folders."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core import as_record, read_json
from ...datasets import LabelTable, check_bag_table
from ...errors import InputError, UnknownName
from ...training import plain
from ..tables.table import key
from .entries import number_list, run_keys

if TYPE_CHECKING:
    from ...datasets import Study

FEATURES, LABELS, INSTANCES = "features", "labels.csv", "instance_labels"
"""Names that make a folder a data set; instance labels are optional."""
PATHS = ("labels", "partition", "duplicates", "test_scans", "train_scans", "instance_labels")
"""Keys of a study that are paths, besides its folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSet:
    """A data set of a grid."""

    name: str
    keys: Mapping[str, Any]
    """Dotted keys of all its runs: paths, reading and training options."""
    table: LabelTable
    splits: tuple[int, ...]
    """The folds used as test parts, or the numbers of the splits of the training part."""
    made: int
    """Number of splits to make of the training part; 0 if the labels have folds."""

    @property
    def folds(self) -> bool:
        """Return whether each bag is tested by the run of its own fold."""
        return self.table.folds is not None

    @property
    def test_bags(self) -> tuple[str, ...]:
        """Return the test bags of all splits."""
        if self.table.folds is None and self.table.splits is not None:
            rows = zip(self.table.bags, self.table.splits, strict=True)
            return tuple(bag for bag, part in rows if part == "test")
        return self.table.bags

    @property
    def groups(self) -> dict[str, str] | None:
        """Return the patient of each bag."""
        return self.table.group_of or None


def found_at(given: str) -> dict[str, dict[str, Any]]:
    """Return the data sets of a folder (`DIR` or `NAME=DIR`) as a grid would name them.

    Raises:
        InputError: The folder holds none; the message lists what was expected.
    """
    name, folder = folder_of(given)
    if (single := _keys_of_folder(folder)) is not None:
        return {name or folder.name: single}
    below = {p.name: _keys_of_folder(p) for p in sorted(folder.iterdir()) if p.is_dir()}
    several = {n: keys for n, keys in below.items() if keys is not None}
    if not several:
        from ...datasets import recognise_study

        try:
            study = recognise_study(folder)
        except InputError as e:
            raise InputError(
                f"{folder}, which --data names, is not a data set: expected {FEATURES}/ and "
                f"{LABELS} in it or in folders below it; and {e}. Features that lie elsewhere "
                "are named in the grid: data: {features: DIR, labels: FILE}"
            ) from e
        return {name or study: {"dataset": study, "root": str(folder)}}
    if name and len(several) > 1:
        raise InputError(
            f"{folder} holds {len(several)} data sets ({', '.join(several)}), which cannot all be "
            f"called {name!r}: give --data {folder}, or one of them"
        )
    return {name: next(iter(several.values()))} if name else several


def _keys_of_folder(folder: Path) -> dict[str, Any] | None:
    """Return the keys of a features folder with labels, or of a study's folder, else None."""
    from ...datasets import STUDY_RECORD, read_study

    if (folder / STUDY_RECORD).is_file():
        return {"dataset": read_study(folder).name, "root": str(folder)}
    features, labels, instances = (folder / n for n in (FEATURES, LABELS, INSTANCES))
    if not (features.is_dir() and labels.is_file()):
        return None
    keys = {"features": str(features), "labels": str(labels)}
    return keys | ({"instance_labels": str(instances)} if instances.is_dir() else {})


def shared_keys(given: Any) -> dict[str, Any]:
    """Return the keys of a grid's `data` that hold for all sets, where it names no folder."""
    is_shared = isinstance(given, dict) and not any(
        isinstance(v, dict) or k in ("features", "labels", "dataset", "root")
        for k, v in given.items()
    )
    return dict(given) if is_shared else {}


def named_sets(given: Any, *, where: str) -> dict[str, dict[str, Any]]:
    """Return the keys of a grid's `data` by data set name, with absolute paths.

    Raises:
        InputError: The value names no paths, or a name cannot be that of a folder.
    """
    if not isinstance(given, dict) or not given:
        raise InputError(
            f"data in {where} is {given!r}: expected {{features: DIR, labels: FILE}}, "
            "{dataset: NAME, root: DIR}, or a name with such a mapping for each of several"
        )
    # otherwise, these keys are the names of data sets
    if any(not isinstance(given.get(k, {}), dict) for k in ("features", "labels", "dataset")):
        single = _absolute(given, where=where)
        name = single.pop("name", None) or single.get("dataset") or _name(Path(single["features"]))
        sets = {name: single}
    else:
        for name, keys in given.items():
            if not isinstance(keys, dict):
                raise InputError(
                    f"data in {where} has {name}: {keys!r}; expected a mapping of keys"
                )
        sets = given
    files: dict[str, Any] = {}
    for name in sets:
        text = str(name)
        if not re.fullmatch(r"[\w.-]+", text) or not re.search(r"\w", text):
            raise InputError(
                f"data in {where} has the name {name!r}, which becomes a folder: give letters, "
                "digits, . - and _"
            )
        if (other := files.setdefault(key(text), name)) is not name:
            raise InputError(
                f"data in {where} has the names {other!r} and {name!r}, whose tables would share "
                "a file: rename one"
            )
    return {str(n): _absolute(keys, where=f"{where} (data {n})") for n, keys in sets.items()}


def check_paths(given: Any, *, data: Sequence[str], where: str) -> None:
    """Refuse folders and tables of data sets that are not there; no study is opened.

    Args:
        given: The value of `data` in a grid.
        data: `DIR` or `NAME=DIR` each, which replace it.
        where: Path of the grid's file, for error messages.

    Raises:
        InputError, TableError, BagError: Names the path.
    """
    for text in data:
        folder_of(text)
    if data or given is None or shared_keys(given):
        return
    for name, keys in named_sets(given, where=where).items():
        folder = Path(keys["root"] if "dataset" in keys else keys["features"])
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder}, which {where} (data {name}) names")
        if "dataset" not in keys:
            check_bag_table(Path(keys["labels"]))


def folder_of(given: str) -> tuple[str, Path]:
    """Return the name and the folder of `DIR` or `NAME=DIR`; the name is empty if none is given.

    Raises:
        InputError: There is no such folder.
    """
    name, equals, rest = given.partition("=")
    if not (equals and re.fullmatch(r"[\w.-]+", name)) or Path(given).exists():
        name, rest = "", given
    folder = Path(rest).expanduser().resolve()
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}, which --data names")
    return name, folder


def prepare_set(
    given: Mapping[str, Any], *, out: Path, feature_set: str | None, where: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the dotted keys of a data set's runs, and notes.

    A study is opened with its folder of features, and its labels are written to `out`.

    Raises:
        InputError, TableError, BagError: The folder is not as expected.
    """
    from ...datasets import STUDY_NAMES, StudyOptions, open_study

    chosen = {} if feature_set is None else {"feature_set": feature_set}
    if "dataset" not in given:
        return run_keys({**given, **chosen}, where=where), ()
    name = given["dataset"]
    if name not in STUDY_NAMES:
        raise UnknownName(f"dataset in {where}", str(name), STUDY_NAMES)
    root = Path(given["root"])
    study = _made_before(out, root) or open_study(
        name,
        root,
        out=out,
        features=Path(given["features"]) if "features" in given else None,
        feature_set=feature_set,
        options=as_record(StudyOptions, given, where=where, advice="correct this key"),
    )
    study_keys = ("dataset", "root", *StudyOptions.__dataclass_fields__, "features")
    rest = {k: v for k, v in given.items() if k not in study_keys}
    settings = {k: plain(v) for k, v in study.settings().items() if v is not None}
    return run_keys(rest | settings, where=where), study.notes


def _made_before(out: Path, root: Path) -> "Study | None":
    """Return the study that an earlier call made of the same folder, if any is finished."""
    from ...datasets import STUDY_RECORD, read_study

    if not (out / STUDY_RECORD).is_file():
        return None
    record = as_record(dict[str, Any], read_json(out / STUDY_RECORD), where=str(out / STUDY_RECORD))
    if record.get("unfinished"):
        return None
    if record.get("root") != str(root.absolute()):
        raise InputError(
            f"{out} was made from {record.get('root')}, not from {root}: give another --out"
        )
    return read_study(out)


def _absolute(given: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    keys = dict(given)
    needed = ("root",) if "dataset" in keys else ("features", "labels")
    for k in needed:
        if not isinstance(keys.get(k), str | Path):
            raise InputError(f"{where} gives no {k}: data needs {' and '.join(needed)}, as paths")
    for k in ("root", "features", *PATHS):
        if keys.get(k) is not None:
            keys[k] = str(Path(keys[k]).expanduser().resolve())
    return keys


def _name(features: Path) -> str:
    """Name a data set after the location of its features."""
    named = features.parent if features.name.startswith(FEATURES) else features
    return re.sub(r"[^\w.-]+", "-", named.name) or "data"


def chosen_splits(
    table: LabelTable, given: int | tuple[int, ...], *, where: str
) -> tuple[int, ...]:
    """Return the splits of a data set: its folds, or the numbers of those to be made.

    Raises:
        InputError: A requested fold does not exist.
    """
    if table.folds is None:
        return number_list(given)
    folds = tuple(sorted(set(table.folds)))
    if isinstance(given, int):
        return folds
    if missing := [k for k in given if k not in folds]:
        raise InputError(
            f"splits in {where} has {missing[0]}, but the folds of {table.where} are "
            f"{', '.join(map(str, folds))}"
        )
    return given
