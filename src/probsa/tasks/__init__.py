"""The six tasks: what a bag is labelled with, and everything that depends on it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
