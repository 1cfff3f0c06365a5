"""Which guarantees are asked for, at which level."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import InputError

SetScore = Literal["lac", "aps"]
"""The score of a class: 1 - p, or the probability of the more probable classes and a random part
of its own. Of a number: the distance from the predicted mean, or that in predicted standard
deviations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GuaranteeOptions:
    """The requested levels; None for what is not requested.

    Raises:
        InputError: a level is not between 0 and 1.
    """

    coverage: float | None = None
    """Probability that the set of a bag contains its class, or the interval its number."""
    max_error: float | None = None
    """Largest error rate of the calls that are accepted."""
    calibration: Path | None = None
    """Predictions folder of the calibration bags; None for the validation bags of the folder."""
    per_class: bool = False
    """Whether coverage holds within each class."""
    score: SetScore = "lac"

    def __post_init__(self) -> None:
        for name in ("coverage", "max_error"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                flag = f"--{name.replace('_', '-')}"
                raise InputError(f"{flag} is {value:g}; expected a number between 0 and 1")
        if self.levels == (None, None):
            raise InputError("no guarantee is requested: give --coverage or --max-error")

    @property
    def levels(self) -> tuple[float | None, float | None]:
        """Both levels."""
        return self.coverage, self.max_error
