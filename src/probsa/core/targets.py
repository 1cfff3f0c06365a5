"""The kinds of targets that a model can be trained for."""

from typing import Literal, get_args

TaskName = Literal["binary", "multiclass", "ordinal", "multilabel", "regression", "survival"]
"""What the label of a bag is, and hence which likelihood and metrics apply."""
TASKS: tuple[TaskName, ...] = get_args(TaskName)
CLASS_TASKS: tuple[TaskName, ...] = ("binary", "multiclass")
"""Tasks with unordered classes, whose likelihood follows from the number of classes alone."""
