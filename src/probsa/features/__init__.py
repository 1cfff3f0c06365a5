"""Stage 3: encoders by name: the pixels of a patch become numbers."""

from ._base import Card as Card
from ._base import Encoder as Encoder
from ._base import Origin as Origin
from ._base import Precision as Precision
from ._base import Preprocessing as Preprocessing
from ._registry import build as build
from ._registry import describe as describe
from ._registry import names as names
from ._registry import readiness as readiness
from ._registry import register as register
