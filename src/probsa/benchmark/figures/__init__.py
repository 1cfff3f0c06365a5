"""Figures of an experiment, from its run folders alone: one a file, its numbers as CSV beside."""

from .attention import attention_figures as attention_figures
from .made import Made as Made
from .write import write_figures as write_figures
