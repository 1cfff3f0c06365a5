"""Names of the columns of a label table, and why a name may be unknown."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from ..errors import TableError, hint
from ..slides import SLIDE_SUFFIXES
from ..tasks import SHOWN

SYNONYMS = {
    "slide_id": "bag",
    "slide": "bag",
    "FILENAME": "bag",
    "case_id": "group",
    "patient": "group",
    "PATIENT": "group",
}
"""Names of the same columns in tables of CLAM, STAMP, slideflow and PathBench."""
COLUMNS = ("bag", "label", "group", "fold", "split")
HEADER = "bag,label[,group][,fold|split]"
SPLIT_PARTS = ("train", "val", "test")
FEATURES_PREFIX = "features_"
"""Beginning of the name of a folder of features, which names their encoder."""
SCAN_SUFFIXES = (".dicom", ".ima", ".nii", ".nii.gz")
FEATURE_SUFFIXES = (".h5", ".hdf5", ".pt", ".pth", ".npy", ".npz")
FILE_SUFFIXES = (*SLIDE_SUFFIXES, ".ome.tif", ".ome.tiff", *SCAN_SUFFIXES, *FEATURE_SUFFIXES)
"""Suffixes of slides, scans and features that a table may write after the name of a bag."""


def without_suffix(
    given: Iterable[str],
    known: Collection[str],
    *,
    where: str,
    lines: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """Return the known name of each name that is a path to it, or has the suffix of a file.

    The last part of a path counts, whether its folders are separated by `/` or by a backslash, and
    then the name without the suffix. A name that is known stays, and so does one that could be
    either of two.

    Args:
        given: Names in a table.
        known: Names of bags.
        where: The table, for messages.
        lines: The line of each name in the table, for messages.

    Raises:
        TableError: two names would be the same bag.
    """
    given = list(given)
    bags = set(known)
    bag_of_name: dict[str, str] = {}
    name_of_bag = {name: name for name in given if name in bags}
    for name in given:
        if name in bags:
            continue
        last = last_part(name)
        # as for a name without folders: if it is a bag, no suffix is removed
        candidates = {last} & bags or bags.intersection(_stems(last))
        if len(candidates) != 1:
            continue
        bag = candidates.pop()
        bag_of_name[name] = bag
        earlier_name = name_of_bag.setdefault(bag, name)
        if earlier_name != name:
            raise TableError(
                f"{where}: {_with_line(earlier_name, lines)} and {_with_line(name, lines)} both "
                f"name the bag {bag!r}: remove one of them"
            )
    return bag_of_name


def _stems(name: str) -> list[str]:
    """Return a name without each suffix of files that it has: `.tiff`, `.ome.tiff`."""
    suffixes = [suffix for suffix in FILE_SUFFIXES if name.lower().endswith(suffix)]
    return [name[: -len(suffix)] for suffix in suffixes]


def _with_line(name: str, lines: Mapping[str, int] | None) -> str:
    """Return a name with the line of a table that it stands in, if that is known."""
    return f"{name!r} (line {lines[name]})" if lines and name in lines else repr(name)


def last_part(path: str) -> str:
    r"""Return what follows the last `/` or backslash of a path. A name of a bag has neither.

    >>> last_part("/data/slides/0007.svs"), last_part(r"D:\slides\0007.svs"), last_part("0007")
    ('0007.svs', '0007.svs', '0007')
    """
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a sentence on why a name is not among the known ones; empty if no cause is likely."""
    if name in known:  # the name is in the table, but without a label
        return ""
    last = last_part(name)
    stems = _stems(last)
    fits = sorted(set(stems) & set(known))
    if len(fits) > 1:
        return f" It may be {' or '.join(map(repr, fits))}: write the name of one of them."
    name = last
    shortest_stem = min(stems, key=len, default="")
    if shortest_stem.isdigit():  # `0007.svs` is compared as the number 0007
        name = shortest_stem
    if name.isdigit():
        for other in known:
            if other.isdigit() and other.lstrip("0") == name.lstrip("0"):
                return (
                    f" There is {other!r}, not {name!r}: ids are text, so leading zeros matter "
                    "(spreadsheets remove them)."
                )
    for other in known:
        if name.startswith(f"{other}.") or other.startswith(f"{name}."):
            return f" Did you mean {other!r}?"
    return hint(name, known)


def listed(names: Sequence[str], *, quote: bool = True) -> str:
    """Return the first few names for a message, and how many more there are."""
    text = ", ".join(repr(name) if quote else name for name in names[:SHOWN])
    if len(names) > SHOWN:
        text += f" and {len(names) - SHOWN} more"
    return text


def encoder_of_folder(folder: str) -> str | None:
    """Return the encoder that the name of a folder states, `features_<encoder>`, if it does."""
    if not folder.startswith(FEATURES_PREFIX):
        return None
    return folder.removeprefix(FEATURES_PREFIX)
