"""Data frames of pandas, which is optional."""

import io
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtra

if TYPE_CHECKING:
    from pandas import DataFrame
else:
    DataFrame = Any  # so that annotations can be evaluated without pandas


def data_frame(columns: Mapping[str, Sequence[Any]]) -> DataFrame:
    """Return a data frame of columns of equal length.

    Raises:
        MissingExtra: pandas is not installed.
    """
    return _pandas().DataFrame(dict(columns))


def frame_of_csv(text: str) -> DataFrame:
    """Return the data frame of a table that was written as CSV.

    Raises:
        MissingExtra: pandas is not installed.
    """
    return _pandas().read_csv(io.StringIO(text))


def _pandas() -> ModuleType:
    try:
        import pandas
    except ImportError as error:
        raise MissingExtra("pandas", "frames") from error
    return pandas
