"""Probabilistic smooth attention: weakly supervised learning on slides and CT scans.

The flow, stage by stage; a room imports only the rooms above it (docs/architecture.md):

    1 slide       a slide, a CT series     →  Slide, Scan                  slides
    2 patches     Slide                    →  Patches                      patches
    3 features    pixels                   →  stored bags                  features, cohorts
    4 graph       coordinates, features    →  edges, weights               core
    5 bags        stored bags, labels      →  Bag, Bags                    core, datasets
    6 model       Bags                     →  Output                       models, variational
    7 objective   Output, Bags             →  a number, its named terms    variational
    8 training    a run file               →  a run folder                 training
    9 evaluation  checkpoint, bags         →  tables                       evaluation, benchmark
    10 maps       predictions              →  mean and variance maps       maps

Feature files of CLAM, TRIDENT, STAMP, slideflow and torchmil enter at stage 5 as they are.
"""

import lazy_loader

__version__ = "0.1.0"
# Names are imported on first use, so that `import probsa` and `probsa --help` do not load PyTorch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
