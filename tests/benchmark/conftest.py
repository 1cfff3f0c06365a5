"""What the tests of experiments share."""

import pytest


@pytest.fixture(autouse=True)
def _few_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchange methods fewer times: made-up results are often equal in every resample."""
    monkeypatch.setattr("probsa.statistics.comparison.EXCHANGES", 99)
