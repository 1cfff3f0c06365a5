"""Stage 1: slides and scans: what is read, whatever the format."""

from ._base import Level as Level
from ._base import Scan as Scan
from ._base import Slide as Slide
from .finding import SLIDE_SUFFIXES as SLIDE_SUFFIXES
from .finding import is_scan as is_scan
from .finding import slide_files as slide_files
from .opening import open_slide as open_slide
from .opening import slide_name as slide_name
from .resolution import resolution_advice as resolution_advice
from .scans import ScanFailure as ScanFailure
from .scans import ScanListing as ScanListing
from .scans import ScanSource as ScanSource
from .scans import list_scans as list_scans
from .scans import open_scan as open_scan
from .scans import open_scans as open_scans
from .windows import WINDOWS as WINDOWS
from .windows import Windows as Windows
from .windows import slice_image as slice_image
from .windows import windowed as windowed
