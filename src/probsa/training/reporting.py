"""The interface through which training reports its progress."""

from collections.abc import Mapping


class Reporter:
    """Receives the progress of training. This one ignores it; the command line shows a bar."""

    def member(self, number: int, count: int) -> None:
        """Called before one of several members is trained; `number` counts from 1."""

    def start(self, *, done: int, epochs: int) -> None:
        """Called before the first epoch; `done` of the `epochs` were trained earlier."""

    def step(self, *, epoch: int, share: float) -> None:
        """Called after a step, with the completed share of the epoch (counted from 0)."""

    def epoch(self, row: Mapping[str, object]) -> None:
        """Called after an epoch: its row of metrics.csv."""

    def count(self, activity: str, done: int, total: int) -> None:
        """Called after each of several bags of an activity, such as `drawing maps`."""

    def note(self, text: str) -> None:
        """Called with a message that the user should see."""

    def remark(self, text: str) -> None:
        """Called with a message that the run's files contain too; grids may omit it."""
