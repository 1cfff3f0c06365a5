"""Stages 1 to 3 for a whole cohort, in a work folder with the layout of a TRIDENT job folder."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
