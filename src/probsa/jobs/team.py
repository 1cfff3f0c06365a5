"""What the workers of a run are to the desk, wherever they run."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from .worker import Answer, Message

PATIENCE = 5.0
"""Seconds that a worker has to end by itself."""


@dataclass(frozen=True, slots=True)
class Death:
    """A worker is gone."""

    how: str


class Team(ABC):
    """Workers by number."""

    @abstractmethod
    def add(self) -> int:
        """Starts a worker; its number."""

    @abstractmethod
    def receive(self, seconds: float) -> list[tuple[int, Message | Death]]:
        """What came, after at most so many seconds."""

    @abstractmethod
    def answer(self, worker: int, answer: Answer) -> None:
        """Answers the last message of a worker."""

    @abstractmethod
    def farewell(self, worker: int) -> None:
        """Waits for a worker that was told to stop."""

    @abstractmethod
    def close(self) -> None:
        """Ends every worker; those that were not told to stop, at once."""
