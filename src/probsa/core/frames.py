"""Data frames of pandas, which is optional."""

from collections.abc import Mapping, Sequence
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
    try:
        import pandas
    except ImportError as error:
        raise MissingExtra("pandas", "frames") from error
    return pandas.DataFrame(dict(columns))
