"""Stage 9: predictions, their metrics, and the null rivals of uncertainty maps."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
