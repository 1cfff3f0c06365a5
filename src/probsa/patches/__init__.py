"""Stage 2: tissue, and the patches that cover it.

`find_tissue(slide, options)` → `cut(slide, tissue, settings)` → `read_patch(slide, patches, i)`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
