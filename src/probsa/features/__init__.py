"""Stage 3: encoders by name, which turn the pixels of a patch into a feature vector."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
