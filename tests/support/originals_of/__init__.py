"""Original weights in our models: `from_original` reads the state dicts of the reference sets."""

from . import authors as authors
from . import torchmil as torchmil
from .authors import framed as framed
from .reading import from_original as from_original
from .reading import reference_of as reference_of
from .reading import renaming as renaming
from .reading import sources as sources
