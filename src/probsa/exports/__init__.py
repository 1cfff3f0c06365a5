"""Stage 10: write maps as OME-TIFF, GeoJSON, DICOM, NIfTI and AnnData."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
