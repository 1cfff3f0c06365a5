"""Training and prediction in the manner of scikit-learn, on bags in memory."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
