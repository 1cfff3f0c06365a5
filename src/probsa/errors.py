"""Every error that probsa raises on purpose.

ProbSAError
├── InputError          a file, a table or a value from the user cannot be used
│   ├── SlideError      a slide or a scan cannot be opened, or lacks necessary information
│   │   ├── RegionError a region cannot be decoded; others may be readable
│   │   └── UnknownResolution  the resolution of a slide is needed, and nobody states it
│   ├── WeightsError    the weights of an encoder are missing, or belong to another encoder
│   ├── BagError        one bag or its file cannot be used; names the bag and the file
│   │   └── EmptyBag    the bag has no instances, for example because no tissue was found
│   ├── GraphError      the graph of neighbouring instances is implausible
│   ├── TableError      a table of labels or splits cannot be used
│   └── UnmetGuarantee  the calibration bags are too few for a requested guarantee
├── UnknownName         a model, a key or an argument does not exist; suggests the nearest
├── OutputExists        an output folder would be overwritten
├── CheckpointError     a checkpoint is damaged, or belongs to another model or version
└── MissingExtra        an optional dependency is not installed; says how to install it
"""

import difflib
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from .removed import instead_of

NUMBER = re.compile(r"[0-9]+")


class ProbSAError(Exception):
    """Base class of all errors that the library itself raises."""


class InputError(ProbSAError, ValueError):
    """A file, a table or a value from the user cannot be used."""


class SlideError(InputError):
    """A slide or a scan cannot be opened, or lacks necessary information."""


class RegionError(SlideError):
    """A region of a slide cannot be decoded; others may be readable."""


class UnknownResolution(SlideError):
    """The resolution of a slide is needed, and neither the file nor the user states it."""


class WeightsError(InputError):
    """The weights of an encoder are missing, or belong to another encoder."""


class BagError(InputError):
    """One bag, or its file, cannot be used."""


class EmptyBag(BagError):
    """A bag has no instances, for example because no tissue was found."""


class GraphError(InputError):
    """The graph of a bag is implausible, or has no edges where some are needed."""


class TableError(InputError):
    """A table of labels or splits cannot be used."""


class OutputExists(ProbSAError, FileExistsError):
    """An output exists already, and neither resuming nor overwriting was requested."""


class CheckpointError(ProbSAError):
    """A checkpoint is damaged, or belongs to another model or version."""


class MissingExtra(ProbSAError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: {install_advice(extra)}")


DISTRIBUTIONS = {
    "cv2": "opencv-python-headless",
    "gdcm": "python-gdcm",
    "mlflow": "mlflow-skinny",
    "openslide": "openslide-python",
}
"""What is installed, by what is imported, where these names differ."""


@contextmanager
def imports_from(extra: str, *packages: str) -> Iterator[None]:
    """Raise MissingExtra if the block imports one of these packages and it is not installed.

    A package that is installed and cannot be imported is broken, or lacks what it needs itself:
    installing the extra would not help. Its ImportError is raised as it is.

    Args:
        extra: the extra of probsa that brings the packages.
        packages: the names by which they are imported.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = absent_package(error)
        if name not in packages:
            raise
        raise MissingExtra(DISTRIBUTIONS.get(name, name), extra) from error


def absent_package(error: ImportError) -> str:
    """Return which package is not installed, by an error of its import; empty if all are there."""
    package = (error.name or "").partition(".")[0]
    if not package or not isinstance(error, ModuleNotFoundError):
        return ""
    if package in sys.modules:
        return package if sys.modules[package] is None else ""
    return package if find_spec(package) is None else ""


def install_advice(extra: str) -> str:
    """Return how an extra is installed: from the source folder, as no index has the package."""
    return f"pip install '.[{extra}]' in the source folder of probsa"


MOST = 60
"""Maximum number of names that an error lists; timm alone has more than a thousand models."""
MOST_BESIDE_SUGGESTION = 12
"""The same beside a suggestion, which a long list would hide."""


class UnmetGuarantee(InputError):
    """The calibration bags are too few for a requested guarantee, or lack the labels that it needs.

    Others may be possible.
    """


class OneClass(TableError):
    """All labels of a table are the same; `bags` are those that have one."""

    bags: frozenset[str] = frozenset()


class UnknownName(ProbSAError, KeyError):
    """A model, a key or an argument does not exist.

    Args:
        kind: what the name should have been: `model`, `key of a run in run.yaml`.
        name: the unknown name.
        known: the names that exist.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(set(known))
        instead = instead_of(name)
        self.name = name
        self.removed = bool(instead)
        """Whether an earlier version had it."""
        self.suggestion = None if instead else closest(name, names)
        """The most similar of the known names; None if none is similar."""
        if instead:
            super().__init__(f"no {kind} named {name!r}.{instead}")
            return
        more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
        listed = f" Known: {', '.join(names[:MOST])}{more}."
        if self.suggestion is not None and len(names) > MOST_BESIDE_SUGGESTION:
            listed = ""
        super().__init__(f"no {kind} named {name!r}.{question(self.suggestion)}{listed}")

    def __str__(self) -> str:
        return str(self.args[0])


def hint(name: str, known: Iterable[str], *, least: float = 0.5) -> str:
    """Return ` Did you mean 'x'?` with the most similar known name, or an empty string.

    The arguments are those of `closest`.
    """
    return question(closest(name, known, least=least))


def question(suggestion: str | None) -> str:
    """Return ` Did you mean 'x'?`, or an empty string without a suggestion."""
    return "" if suggestion is None else f" Did you mean {suggestion!r}?"


def closest(name: str, known: Iterable[str], *, least: float = 0.5) -> str | None:
    """Return the most similar known name; None if none is similar.

    Case, and whether words are joined by `-` or `_`, make names no less similar. A name that
    differs in its numbers only (`slide5` for `slide9`) is that of another thing, unless one number
    is the beginning of the other (`resnet5`).

    Args:
        name: the name that is not known.
        known: the names that are.
        least: the least similarity of a name that is suggested, from 0 to 1.
    """
    candidates: dict[str, str] = {}
    for other in known:
        if not _differs_in_numbers_only(name, other):
            candidates[_plain(other)] = other
    matches = difflib.get_close_matches(_plain(name), list(candidates), n=1, cutoff=least)
    return candidates[matches[0]] if matches else None


def _numbers(name: str) -> list[str]:
    return [digits.lstrip("0") for digits in NUMBER.findall(name)]


def _differs_in_numbers_only(name: str, other: str) -> bool:
    if NUMBER.sub("#", name) != NUMBER.sub("#", other):
        return False
    pairs = zip(_numbers(name), _numbers(other), strict=True)
    return not all(a.startswith(b) or b.startswith(a) for a, b in pairs)


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
