"""Workers as actors of a Ray cluster: https://docs.ray.io. Needs the extra `cluster`.

The folder must be the same path on every machine.
"""

import logging
import os
import pickle
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError, MissingExtra
from .tasks import Stage
from .team import PATIENCE, Death, Team
from .worker import Answer, Message, portable, serve


@dataclass(kw_only=True, slots=True)
class Actors(Team):
    """Workers by number; each answer to a worker is a call whose result is its next message."""

    stage: Stage
    gpus: bool
    workers: int
    pickled: bytes = b""
    ray: Any = None
    ours: bool = False
    """Whether it was we who started or joined Ray."""
    actors: dict[int, Any] = field(default_factory=dict)
    calls: dict[Any, int] = field(default_factory=dict)
    """Which worker's next message each reference stands for."""
    started: int = 0

    def __post_init__(self) -> None:
        self.pickled = pickle.dumps(self.stage)
        # No statistics leave the machine unless the user says so; read when Ray starts.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError:
            raise MissingExtra("ray", "cluster") from None
        self.ray = ray
        if not ray.is_initialized():
            self._join()
            self.ours = True

    def _join(self) -> None:
        """The cluster that runs here or that RAY_ADDRESS names, or else one of this machine."""
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            self.ray.init(address="auto", **quiet)
            return
        except ConnectionError as e:
            given = os.environ.get("RAY_ADDRESS")
            if given:
                raise InputError(f"no Ray cluster answers at RAY_ADDRESS={given}: {e}") from e
        # Actors that no processor is left for would wait for ever.
        processors = max(self.workers, os.cpu_count() or 1)
        self.ray.init(address="local", include_dashboard=False, num_cpus=processors, **quiet)
        if self.gpus and not self.ray.cluster_resources().get("GPU"):
            self.ray.shutdown()
            raise InputError("an actor per GPU was asked for, and Ray found no GPU here")

    def add(self) -> int:
        number, self.started = self.started, self.started + 1
        needs = {"num_gpus": 1} if self.gpus else {"num_cpus": 1}
        actor = self.ray.remote(_Actor).options(max_restarts=0, **needs).remote(self.pickled)
        self.actors[number] = actor
        self.calls[actor.step.remote(None)] = number
        return number

    def receive(self, seconds: float) -> list[tuple[int, Message | Death]]:
        if not self.calls:  # all of them are idle
            time.sleep(seconds)
            return []
        ready, _ = self.ray.wait(list(self.calls), timeout=seconds)
        came: list[tuple[int, Message | Death]] = []
        for call in ready:
            number = self.calls.pop(call)
            try:
                came.append((number, self.ray.get(call)))
            except self.ray.exceptions.RayActorError as e:
                # An actor that cannot be reached may live on: it must not.
                self.ray.kill(self.actors.pop(number))
                came.append((number, Death(str(e).partition("\n")[0].rstrip("."))))
        return came

    def answer(self, worker: int, answer: Answer) -> None:
        self.calls[self.actors[worker].step.remote(answer)] = worker

    def farewell(self, worker: int) -> None:
        """Nothing: an actor that was told to stop only waits."""

    def close(self) -> None:
        for actor in self.actors.values():
            self.ray.kill(actor)
        if self.calls:  # a call of an actor ends with it
            self.ray.wait(list(self.calls), num_returns=len(self.calls), timeout=PATIENCE)
        self.actors.clear()
        self.calls.clear()
        if self.ours:
            self.ray.shutdown()


class _Actor:
    """The worker's loop in a thread, turned by calls."""

    def __init__(self, pickled: bytes) -> None:
        self.pickled = pickled
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self.work, name="worker", daemon=True).start()

    def work(self) -> None:
        try:
            serve(pickle.loads(self.pickled), self.ask)
        except Exception as e:  # noqa: BLE001 - the caller raises it
            self.messages.put(portable(e))

    def ask(self, message: Message) -> Answer:
        self.messages.put(message)
        return self.answers.get()

    def step(self, answer: Answer | None) -> Message:
        """Hands in the answer to the last message, and waits for the next one."""
        if answer is not None:
            self.answers.put(answer)
        return self.messages.get()
