"""Data structures that every room uses: bags, segments, graphs, the store, files, randomness."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
