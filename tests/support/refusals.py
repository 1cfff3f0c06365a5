"""Check what is refused, and with which words."""

from collections.abc import Callable
from typing import Any

import pytest


def refused(
    error: type[Exception], words: str, call: Callable[..., Any], *values: Any, **options: Any
) -> None:
    """Check that a call with these values raises the error, with words that match."""
    with pytest.raises(error, match=words):
        call(*values, **options)
