"""Probabilistic smooth attention: weakly supervised learning on slides and CT scans.

The flow, stage by stage; a stage imports only the stages before it:

    1 slide       a slide, a CT series     →  Slide, Scan                  slides
    2 patches     Slide                    →  Patches                      patches
    3 features    pixels                   →  stored bags                  features, cohorts
    4 graph       coordinates, features    →  edges, weights               graphs
    5 bags        stored bags, labels      →  Bag, Bags                    bags, store, datasets
    6 model       Bags                     →  Output                       models, posteriors
    7 objective   Output, Bags             →  a number, its named terms    objectives, schedules
    8 training    a run file               →  a run folder                 training
    9 evaluation  checkpoint, bags         →  tables                       evaluation
    10 maps       predictions              →  mean and variance maps       maps

Files of CLAM, TRIDENT, STAMP, slideflow and torchmil enter at 5 as they are.
"""

from typing import TYPE_CHECKING, Any

from . import models as models
from .bags import Bag as Bag
from .bags import Bags as Bags
from .bags import pack as pack
from .errors import ProbSAError as ProbSAError

if TYPE_CHECKING:
    from .evaluation.predictor import load as load
    from .workflow import predict_folder as predict_folder
    from .workflow import train_and_report as train_and_report

__version__ = "0.1.0"

# These reach far down the flow (files, scikit-learn, matplotlib): they are imported when asked for,
# so that `import probsa` costs what its core costs.
_LATER = {
    "load": "probsa.evaluation.predictor",
    "predict_folder": "probsa.workflow",
    "train_and_report": "probsa.workflow",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'probsa' has no attribute {name!r}")
