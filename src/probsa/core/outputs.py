"""What is predicted of a bag, column by column, and what the columns of numbers mean."""

from collections.abc import Sequence
from dataclasses import dataclass

QUANTILE = "q"
SURVIVAL = "s_"


@dataclass(frozen=True, slots=True)
class Outputs:
    """The predicted columns of a bag: their names in predictions.csv, and what they mean.

    Quantiles and probabilities of survival are the last columns, in the order of their levels and
    times.
    """

    names: tuple[str, ...] = ()
    """Names of classes, grades or findings; otherwise as in `of_number` and `of_time`."""
    quantiles: tuple[float, ...] = ()
    """The levels of the columns that are quantiles of a number."""
    times: tuple[float, ...] = ()
    """The times of the columns that are probabilities of survival."""

    @classmethod
    def of_number(cls, levels: Sequence[float]) -> "Outputs":
        """Return the columns of a number: mean, standard deviation and quantiles, as `q05`."""
        columns = [f"{QUANTILE}{round(100 * level):02d}" for level in levels]
        return cls(("mean", "sd", *columns), quantiles=tuple(levels))

    @classmethod
    def of_time(cls, times: Sequence[float]) -> "Outputs":
        """Return the columns of a time to an event: the risk, and survival at times, as `s_12`.

        The times are those that the names state, with six digits, so that predictions on disk say
        the same as those in memory.
        """
        columns = [f"{SURVIVAL}{time:g}" for time in times]
        return cls(("risk", *columns), times=tuple(float(f"{time:g}") for time in times))

    @classmethod
    def of_number_named(cls, names: Sequence[str]) -> "Outputs":
        """Return the columns that `of_number` gave, by their names in the header of a table.

        Raises:
            ValueError: a name is not one of them.
        """
        levels = [name.removeprefix(QUANTILE) for name in names[2:]]
        return cls(tuple(names), quantiles=tuple(int(level) / 100 for level in levels))

    @classmethod
    def of_time_named(cls, names: Sequence[str]) -> "Outputs":
        """Return the columns that `of_time` gave, by their names in the header of a table.

        Raises:
            ValueError: a name is not one of them.
        """
        times = [name.removeprefix(SURVIVAL) for name in names[1:]]
        return cls(tuple(names), times=tuple(float(time) for time in times))

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int:
        """Return which column has this name."""
        return self.names.index(name)

    def quantile(self, level: float) -> int:
        """Return which column is the quantile of this level."""
        return self._leading + self.quantiles.index(level)

    @property
    def of_quantiles(self) -> slice:
        """The columns of quantiles."""
        return slice(self._leading, self._leading + len(self.quantiles))

    @property
    def of_times(self) -> slice:
        """The columns of probabilities of survival."""
        return slice(self._leading, self._leading + len(self.times))

    def first(self, count: int) -> "Outputs":
        """Return the first columns, so many of them."""
        rest = max(count - self._leading, 0)
        return Outputs(self.names[:count], quantiles=self.quantiles[:rest], times=self.times[:rest])

    @property
    def _leading(self) -> int:
        """The number of columns before those of levels or times."""
        return len(self.names) - len(self.quantiles) - len(self.times)


NO_OUTPUTS = Outputs()
"""Of predictions whose columns are those of unordered classes."""
