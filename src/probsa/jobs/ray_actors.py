"""Workers as actors of a Ray cluster (https://docs.ray.io); needs the extra `cluster`.

The folder must have the same path on every machine.
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
from .worker import Answer, Message, picklable, serve


@dataclass(kw_only=True, slots=True)
class Actors(Team):
    """Worker actors; each answer is sent by a call whose result is the worker's next message."""

    stage: Stage
    gpus: bool
    workers: int
    pickled: bytes = b""
    ray: Any = None
    owns_ray: bool = False
    """Whether this object started or joined Ray and therefore has to shut it down."""
    actors: dict[int, Any] = field(default_factory=dict)
    calls: dict[Any, int] = field(default_factory=dict)
    """The worker whose next message each Ray reference stands for."""
    started: int = 0

    def __post_init__(self) -> None:
        self.pickled = pickle.dumps(self.stage)
        # Ray reads this when it starts: it sends no usage statistics unless the user allows it.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError:
            raise MissingExtra("ray", "cluster") from None
        self.ray = ray
        if not ray.is_initialized():
            self._join_cluster()
            self.owns_ray = True

    def _join_cluster(self) -> None:
        """Join the cluster of this machine or of RAY_ADDRESS; start a local one if there is none.

        Raises:
            InputError: No cluster answers at RAY_ADDRESS, or GPUs are wanted and there are none.
        """
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            self.ray.init(address="auto", **quiet)
            return
        except ConnectionError as e:
            address = os.environ.get("RAY_ADDRESS")
            if address:
                raise InputError(f"no Ray cluster answers at RAY_ADDRESS={address}: {e}") from e
        # With fewer processors than actors, some actors would wait for ever.
        processors = max(self.workers, os.cpu_count() or 1)
        self.ray.init(address="local", include_dashboard=False, num_cpus=processors, **quiet)
        if self.gpus and not self.ray.cluster_resources().get("GPU"):
            self.ray.shutdown()
            raise InputError("one GPU per actor was requested, but Ray found no GPU")

    def add(self) -> int:
        number, self.started = self.started, self.started + 1
        needs = {"num_gpus": 1} if self.gpus else {"num_cpus": 1}
        actor = self.ray.remote(_Actor).options(max_restarts=0, **needs).remote(self.pickled)
        self.actors[number] = actor
        self.calls[actor.step.remote(None)] = number
        return number

    def receive(self, seconds: float) -> list[tuple[int, Message | Death]]:
        if not self.calls:  # all workers are idle
            time.sleep(seconds)
            return []
        ready, _ = self.ray.wait(list(self.calls), timeout=seconds)
        received: list[tuple[int, Message | Death]] = []
        for call in ready:
            number = self.calls.pop(call)
            try:
                received.append((number, self.ray.get(call)))
            except self.ray.exceptions.RayActorError as e:
                # An actor that cannot be reached may still be alive: end it.
                self.ray.kill(self.actors.pop(number))
                received.append((number, Death(str(e).partition("\n")[0].rstrip("."))))
        return received

    def answer(self, worker: int, answer: Answer) -> None:
        self.calls[self.actors[worker].step.remote(answer)] = worker

    def join(self, worker: int) -> None:
        """Do nothing: an actor that was told to stop stays alive until `close`."""

    def close(self) -> None:
        for actor in self.actors.values():
            self.ray.kill(actor)
        if self.calls:  # the calls end together with their actors
            self.ray.wait(list(self.calls), num_returns=len(self.calls), timeout=PATIENCE)
        self.actors.clear()
        self.calls.clear()
        if self.owns_ray:
            self.ray.shutdown()


class _Actor:
    """Runs the worker's loop in a thread, which advances with each call of `step`."""

    def __init__(self, pickled: bytes) -> None:
        self.pickled = pickled
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self.work, name="worker", daemon=True).start()

    def work(self) -> None:
        try:
            serve(pickle.loads(self.pickled), self.ask)
        except Exception as e:  # noqa: BLE001 - the scheduler raises it
            self.messages.put(picklable(e))

    def ask(self, message: Message) -> Answer:
        self.messages.put(message)
        return self.answers.get()

    def step(self, answer: Answer | None) -> Message:
        """Pass on the answer to the last message, and wait for the next message."""
        if answer is not None:
            self.answers.put(answer)
        return self.messages.get()
