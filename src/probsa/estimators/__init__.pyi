from .classifier import MILClassifier as MILClassifier
from .inputs import as_bags as as_bags
from .instance_scores import InstanceScores as InstanceScores
from .per_instance import PerInstance as PerInstance
from .regressor import MILRegressor as MILRegressor
from .regressor import PredictedNumbers as PredictedNumbers
from .survival import MILSurvival as MILSurvival
