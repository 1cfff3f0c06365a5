"""Names of the columns of a label table, and why a name may be unknown."""

from collections.abc import Sequence

from ..errors import hint
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
