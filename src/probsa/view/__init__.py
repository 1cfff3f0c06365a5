"""Stage 10: predictions in a browser: the same page from a local server or as a folder of files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
