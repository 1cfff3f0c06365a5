"""Stage 10: maps of the evidence in a bag and of the model's uncertainty about it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
