"""Every error that probsa raises on purpose.

ProbSAError
├── InputError          a file, a table or a value that the user gave cannot be used
│   ├── SlideError      a slide or a scan cannot be opened, or lacks what is needed of it
│   │   └── RegionError a part of it cannot be decoded; the rest may be
│   ├── WeightsError    an encoder's weights are missing or belong to another
│   ├── BagError        one bag: names it, and its file
│   │   └── EmptyBag    it has no instances: no tissue was found, say
│   ├── GraphError      the neighbourhood graph of a bag is implausible
│   └── TableError      labels and splits
├── UnknownName         a model, key or argument that does not exist; suggests the right one
├── OutputExists        an output folder that would be overwritten
├── CheckpointError     a checkpoint of another model or version, or a damaged one
└── MissingExtra        an optional dependency, which names itself
"""

import difflib
from collections.abc import Iterable


class ProbSAError(Exception):
    """Base class: `except ProbSAError` catches what the library itself raised."""


class InputError(ProbSAError, ValueError):
    """What the user gave cannot be used."""


class SlideError(InputError):
    """A slide or a scan cannot be opened, or lacks what is needed of it."""


class RegionError(SlideError):
    """A part of a slide cannot be decoded; the rest may be."""


class WeightsError(InputError):
    """An encoder's weights are missing, or belong to another."""


class BagError(InputError):
    """One bag, or its file, cannot be used."""


class EmptyBag(BagError):
    """A bag without instances: no tissue was found, say."""


class GraphError(InputError):
    """The graph of a bag is implausible, or empty where one is needed."""


class TableError(InputError):
    """The table of labels or splits cannot be used."""


class OutputExists(ProbSAError, FileExistsError):
    """The output is there already, and neither resuming nor overwriting was asked for."""


class CheckpointError(ProbSAError):
    """A checkpoint is damaged, or belongs to another model or version."""


class MissingExtra(ProbSAError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'probsa[{extra}]'")


MOST = 60
"""Names that an error lists: timm alone has more than a thousand models."""


class UnknownName(ProbSAError, KeyError):
    """A model, key or argument that does not exist."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(set(known))
        guess = hint(name, known)
        # a wall of names helps nobody who has the right one
        listed = "" if guess and len(known) > 12 else f" Known: {', '.join(known[:MOST])}."
        if not guess and len(known) > MOST:
            listed = f"{listed[:-1]} and {len(known) - MOST} more."
        super().__init__(f"no {kind} named {name!r}.{guess}{listed}")

    def __str__(self) -> str:
        return str(self.args[0])


def hint(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` with the nearest known name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
