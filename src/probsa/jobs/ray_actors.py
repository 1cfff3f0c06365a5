"""Workers as actors of a Ray cluster (https://docs.ray.io); needs the extra `cluster`.

The folder must have the same path on every machine.
"""

import logging
import os
import pickle
import queue
import threading
import time
from typing import Any

from ..errors import InputError, imports_from
from .processes import PATIENCE, Death, Message, picklable
from .tasks import Stage, Task, work


class Ended:
    """Comes from an actor whose loop has ended in order: no task is left for it."""


class Actors:
    """Worker actors with the methods of `Processes`; a call returns a worker's next message."""

    def __init__(self, stage: Stage, *, gpus: bool, workers: int) -> None:
        self.stage, self.pickled, self.gpus = stage, pickle.dumps(stage), gpus
        self.actors: dict[int, Any] = {}
        self.calls: dict[Any, int] = {}
        """The worker whose next message each Ray reference stands for."""
        # Ray reads this when it starts: it sends no usage statistics unless the user allows it.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        with imports_from("cluster", "ray"):
            import ray
        self.ray: Any = ray
        self.owns_ray = not ray.is_initialized()
        """Whether this object started or joined Ray and therefore has to shut it down."""
        if self.owns_ray:
            self._join_cluster(workers)

    def _join_cluster(self, workers: int) -> None:
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
        processors = max(workers, os.cpu_count() or 1)
        self.ray.init(address="local", include_dashboard=False, num_cpus=processors, **quiet)
        if self.gpus and not self.ray.cluster_resources().get("GPU"):
            self.ray.shutdown()
            raise InputError("one GPU per actor was requested, but Ray found no GPU")

    def add(self) -> None:
        needs = {"num_gpus": 1} if self.gpus else {"num_cpus": 1}
        number, remote = len(self.actors), self.ray.remote(_Actor).options(max_restarts=0, **needs)
        self.actors[number] = remote.remote(self.pickled)
        self.calls[self.actors[number].step.remote()] = number

    def receive(self, seconds: float) -> list[tuple[int, Message]]:
        if not self.calls:
            time.sleep(seconds)
            return []
        ready, _ = self.ray.wait(list(self.calls), timeout=seconds)
        received: list[tuple[int, Message]] = []
        for call in ready:
            number = self.calls.pop(call)
            try:
                message = self.ray.get(call)
                if isinstance(message, Ended):  # its processor is needed for the next actor
                    self.ray.kill(self.actors[number])
                    continue
                if message is not None:  # else the next call brings the answer
                    self.calls[self.actors[number].step.remote()] = number
            except self.ray.exceptions.RayActorError as e:
                # An actor that cannot be reached may still be alive: end it.
                self.ray.kill(self.actors[number])
                message = Death(str(e).partition("\n")[0].rstrip("."))
            received.append((number, message))
        return received

    def answer(self, worker: int, task: Task | None) -> None:
        self.calls[self.actors[worker].step.remote(task)] = worker

    def close(self) -> None:
        for actor in self.actors.values():
            self.ray.kill(actor)
        if self.calls:  # the calls end together with their actors
            self.ray.wait(list(self.calls), num_returns=len(self.calls), timeout=PATIENCE)
        if self.owns_ray:
            self.ray.shutdown()


class _Actor:
    """Runs the worker's loop in a thread, and passes on its messages."""

    def __init__(self, pickled: bytes) -> None:
        self.pickled = pickled
        self.answers: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.messages: queue.SimpleQueue[Message | Ended] = queue.SimpleQueue()
        threading.Thread(target=self.work, name="worker", daemon=True).start()

    def work(self) -> None:
        try:
            work(pickle.loads(self.pickled), iter(self.ask, None), tell=self.messages.put)
            self.messages.put(Ended())
        except Exception as e:  # noqa: BLE001 - the supervisor raises it
            self.messages.put(picklable(e))

    def ask(self) -> Task | None:
        self.messages.put(None)
        return self.answers.get()

    def step(self, *answer: Task | None) -> Message | Ended:
        """Pass on the answer to the last message, if it asked for one; wait for the next."""
        for task in answer:
            self.answers.put(task)
        return self.messages.get()
