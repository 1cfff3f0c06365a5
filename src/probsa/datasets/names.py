"""Names of the columns of a label table, and why a name may be unknown."""

from collections.abc import Collection, Iterable, Sequence

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


def without_suffix(given: Iterable[str], known: Collection[str], *, where: str) -> dict[str, str]:
    """Return the known name of each name that is not known but for the suffix of a file.

    Raises:
        TableError: two names would be the same bag.
    """
    given, known, bag_of = list(given), set(known), dict[str, str]()
    meant = {name: name for name in given if name in known}
    for name in given:
        ends = (s for s in FILE_SUFFIXES if name.lower().endswith(s))
        fits = set() if name in known else {name[: -len(s)] for s in ends} & known
        if len(fits) == 1:
            bag_of[name] = fits.pop()
            if (other := meant.setdefault(bag_of[name], name)) != name:
                raise TableError(
                    f"{where}: {other!r} and {name!r} both name the bag {bag_of[name]!r}: remove "
                    "one of them"
                )
    return bag_of


def nearest(name: str, known: Sequence[str]) -> str:
    """Suggest why a name is not among the known ones; an empty string if no cause is likely."""
    if name in known:  # the name is in the table, but without a label
        return ""
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
