from .base import InstanceScores as InstanceScores
from .classifier import MILClassifier as MILClassifier
from .inputs import as_bags as as_bags
from .per_instance import PerInstance as PerInstance
from .regressor import MILRegressor as MILRegressor
from .regressor import PredictedNumbers as PredictedNumbers
from .survival import MILSurvival as MILSurvival
