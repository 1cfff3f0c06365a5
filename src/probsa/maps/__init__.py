"""Stage 10: maps of where the evidence is, and of how sure the model is of it."""

from .folder import render_folder as render_folder
from .layout import Raster as Raster
from .layout import raster as raster
from .render import draw_map as draw_map
from .render import render_map as render_map
from .scale import Limits as Limits
from .scale import map_limits as map_limits
