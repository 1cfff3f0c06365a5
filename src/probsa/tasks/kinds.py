"""The six tasks, by name."""

from collections.abc import Mapping

from ..core import TaskName
from .base import Task
from .classes import Binary, Multiclass, Ordinal
from .findings import Multilabel
from .numbers import Regression
from .times import Survival

TASKS: Mapping[TaskName, Task] = {
    task.name: task
    for task in (Binary(), Multiclass(), Ordinal(), Multilabel(), Regression(), Survival())
}
"""The tasks by name."""
