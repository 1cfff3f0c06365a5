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
FILE_SUFFIXES = (
    *SLIDE_SUFFIXES, ".ome.tif", ".ome.tiff", ".dicom", ".ima", ".nii", ".nii.gz",
    ".h5", ".hdf5", ".pt", ".pth", ".npy", ".npz",
)  # fmt: skip
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
    known = set(known)
    bag_of: dict[str, str] = {}
    meant = {name: name for name in given if name in known}
    for name in given:
        if name in known:
            continue
        last = last_part(name)
        ends = (suffix for suffix in FILE_SUFFIXES if last.lower().endswith(suffix))
        # a last part that is known is taken as if it stood in the table alone
        fits = {last} & known or {last[: -len(suffix)] for suffix in ends} & known
        if len(fits) != 1:
            continue
        bag_of[name] = fits.pop()
        if (other := meant.setdefault(bag_of[name], name)) != name:
            both = [other, name]
            shown = " and ".join(
                f"{each!r} (line {lines[each]})" if lines and each in lines else repr(each)
                for each in both
            )
            raise TableError(
                f"{where}: {shown} both name the bag {bag_of[name]!r}: remove one of them"
            )
    return bag_of


def last_part(path: str) -> str:
    r"""Return what follows the last `/` or backslash of a path, which a name of a bag has not.

    >>> last_part("/data/slides/0007.svs"), last_part(r"D:\slides\0007.svs"), last_part("0007")
    ('0007.svs', '0007.svs', '0007')
    """
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def nearest(name: str, known: Sequence[str]) -> str:
    """Suggest why a name is not among the known ones; an empty string if no cause is likely."""
    if name in known:  # the name is in the table, but without a label
        return ""
    last = last_part(name)
    ends = [suffix for suffix in FILE_SUFFIXES if last.lower().endswith(suffix)]
    stems = [last[: -len(suffix)] for suffix in ends]
    fits = sorted(set(stems) & set(known))
    if len(fits) > 1:
        return f" It may be {' or '.join(map(repr, fits))}: write the name of one of them."
    name = min(stems, key=len) if stems and min(stems, key=len).isdigit() else last
    number = name.lstrip("0")
    equal_numbers = [k for k in known if k.isdigit() and name.isdigit() and k.lstrip("0") == number]
    if equal_numbers:
        return (
            f" There is {equal_numbers[0]!r}, not {name!r}: ids are text, so leading zeros matter "
            "(spreadsheets remove them)."
        )
    prefix_matches = [k for k in known if name.startswith(f"{k}.") or k.startswith(f"{name}.")]
    return f" Did you mean {prefix_matches[0]!r}?" if prefix_matches else hint(name, known)


def listed(names: Sequence[str], *, quote: bool = True) -> str:
    """Return the first few names for a message, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(repr(n) if quote else n for n in names[:SHOWN]) + more
