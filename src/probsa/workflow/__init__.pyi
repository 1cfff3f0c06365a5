from .folders import predict_folder as predict_folder
from .runs import Trained as Trained
from .runs import finish_run as finish_run
from .runs import predict_run as predict_run
from .runs import train_and_report as train_and_report
from .writing import Failures as Failures
from .writing import OnBag as OnBag
from .writing import Predicted as Predicted
