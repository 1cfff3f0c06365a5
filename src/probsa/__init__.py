"""Probabilistic smooth attention: weakly supervised learning on whole-slide images and CT scans.

The stages of the flow, and the rooms (subpackages) that implement them; docs/architecture.md
explains the order in which rooms may import one another:

    1 slide       a slide, a CT series     →  Slide, Scan                  slides
    2 patches     Slide                    →  Patches                      patches
    3 features    pixels                   →  stored bags                  features, cohorts
    4 graph       coordinates, features    →  edges, weights               core
    5 bags        stored bags, labels      →  Bag, Bags                    core, datasets
    6 model       Bags                     →  Output                       models, variational
    7 objective   Output, Bags             →  a loss and its terms         variational
    8 training    a run file               →  a run folder                 training
    9 evaluation  checkpoint, bags         →  tables of metrics            evaluation, benchmark
    10 maps       predictions              →  mean and variance maps       maps

Feature files of CLAM, TRIDENT, STAMP, slideflow and torchmil are read at stage 5 as they are.
"""

import lazy_loader

__version__ = "0.3.0"
# Names are imported on first use: `import probsa` and `probsa --help` do not import PyTorch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
