"""The interface through which the scheduler talks to its workers, wherever they run."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from .worker import Answer, Message

PATIENCE = 5.0
"""Seconds that a worker has to end by itself."""


@dataclass(frozen=True, slots=True)
class Death:
    """Received instead of a message when a worker has died."""

    how: str


class Team(ABC):
    """Workers, identified by number."""

    @abstractmethod
    def add(self) -> int:
        """Start a worker and return its number."""

    @abstractmethod
    def receive(self, seconds: float) -> list[tuple[int, Message | Death]]:
        """Return the messages that have come, with their workers; wait at most `seconds`."""

    @abstractmethod
    def answer(self, worker: int, answer: Answer) -> None:
        """Answer the last message of a worker."""

    @abstractmethod
    def join(self, worker: int) -> None:
        """Wait for the end of a worker that was told to stop."""

    @abstractmethod
    def close(self) -> None:
        """End every worker; kill those that have not stopped by themselves."""
