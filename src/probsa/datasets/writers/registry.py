"""Bags in the files of other tools: one file a format."""

from ...errors import UnknownName
from .base import Writer
from .clam import ClamWriter
from .probsa import ProbsaWriter
from .torchmil import TorchmilWriter
from .trident import TridentWriter

WRITERS: dict[str, type[Writer]] = {
    "trident": TridentWriter,
    "clam": ClamWriter,
    "torchmil": TorchmilWriter,
    "probsa": ProbsaWriter,
}


def writer_class(name: str) -> type[Writer]:
    """The writer of a format.

    Raises:
        UnknownName: there is none.
    """
    if name not in WRITERS:
        raise UnknownName("format to write", name, WRITERS)
    return WRITERS[name]
