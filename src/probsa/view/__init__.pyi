from .app import make_app as make_app
from .app import serve as serve
from .export import MAX_MPP as MAX_MPP
from .export import SLICE_PIXELS as SLICE_PIXELS
from .export import Exported as Exported
from .export import export_page as export_page
from .output import check_export as check_export
from .pages import ViewData as ViewData
