"""Stage 6: the models, one module each. `names()` lists them; `build(name, ...)` makes one."""

from ._base import Model as Model
from ._base import Output as Output
from ._originals import from_original as from_original
from ._registry import arguments as arguments
from ._registry import build as build
from ._registry import names as names
from ._registry import register as register
from ._registry import summary as summary
