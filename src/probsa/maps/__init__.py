"""Stage 10: maps of where the evidence is, and of how certain the model is of it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
