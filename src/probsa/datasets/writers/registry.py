"""The writers, by the name of their format."""

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
    """Return the writer of a format.

    Raises:
        UnknownName: there is no such format.
    """
    if name not in WRITERS:
        raise UnknownName("format to write", name, WRITERS)
    return WRITERS[name]
