"""Stage 2: tissue, and the patches that hold it.

`find_tissue(slide, options)` → `cut(slide, tissue, settings)` → `read_patch(slide, patches, i)`.
"""

from ._base import Patches as Patches
from ._presets import preset as preset
from ._presets import presets as presets
from ._presets import settings as settings
from .cutting import cut as cut
from .geojson import read_geojson as read_geojson
from .geojson import write_geojson as write_geojson
from .options import PatchSettings as PatchSettings
from .options import TissueOptions as TissueOptions
from .overview import draw_overview as draw_overview
from .overview import thumbnail as thumbnail
from .pixels import read_patch as read_patch
from .polygons import Polygon as Polygon
from .polygons import Tissue as Tissue
from .tissue import find_tissue as find_tissue
