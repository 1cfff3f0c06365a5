from . import models as models
from .core.bags import Bag as Bag
from .core.bags import Bags as Bags
from .core.bags import pack as pack
from .errors import ProbSAError as ProbSAError
from .estimators import MILClassifier as MILClassifier
from .estimators import MILRegressor as MILRegressor
from .estimators import MILSurvival as MILSurvival
from .estimators import PerInstance as PerInstance
from .evaluation.loading import from_pretrained as from_pretrained
from .evaluation.loading import load as load
from .workflow import predict_folder as predict_folder
from .workflow import train_and_report as train_and_report

__version__: str
