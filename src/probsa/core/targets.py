"""The kinds of targets that a model can be trained for."""

from typing import Literal

TaskName = Literal["binary", "multiclass", "ordinal", "multilabel", "regression", "survival"]
"""What the label of a bag is; `probsa.tasks` holds what follows from it."""
