"""A stage that writes small files and can be made to fail, and a command that runs it."""

import errno
import json
import os
import signal
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

from probsa.core import replacing, write_json, write_text
from probsa.errors import MissingExtra
from probsa.jobs import Stage, Task, TaskOutcome, end_with_parent, run_tasks


def wait_for(there, *, seconds=60):
    """Wait until `there()` is true; raise TimeoutError after `seconds`."""
    until = time.monotonic() + seconds
    while not there():
        if time.monotonic() > until:
            raise TimeoutError("the condition did not become true")
        time.sleep(0.01)


def wait_with_parent(path):
    end_with_parent()
    path.touch()
    wait_for(lambda: False)


@dataclass
class Toy(Stage):
    """A stage whose tasks fail as their payloads specify (see `act`)."""

    folder: Path
    ahead: int = 1
    """Number of tasks that are taken before the first is done."""
    parties: int = 0
    """Number of processes that must have begun their first task before any continues."""
    begin: str = ""

    def note(self, line):
        with (self.folder / "log").open("a") as f:
            f.write(f"{line} {os.getpid()}\n")

    def record_file(self, task):
        return self.folder / "records" / f"{task.name}.json"

    def known(self, task):
        path = self.record_file(task)
        record = json.loads(path.read_text()) if path.exists() else {"status": "failed"}
        return None if record["status"] == "failed" else TaskOutcome(**(record | {"kept": True}))

    def record(self, task, outcome):
        write_json(self.record_file(task), asdict(outcome))

    def start(self):
        self.note("start")
        self.met = False
        if self.begin == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.begin == "lacking":
            raise MissingExtra("timm", "encoders")

    def run(self, tasks):
        self.note("run")
        pending = deque()
        for task in tasks:
            pending.append(task)
            if len(pending) >= self.ahead:
                yield self.do(pending.popleft())
        while pending:
            yield self.do(pending.popleft())

    def do(self, task):
        self.note(f"at {task.name}")
        if self.parties and not self.met:
            (self.folder / f"met-{os.getpid()}").touch()
            wait_for(lambda: len(list(self.folder.glob("met-*"))) >= self.parties)
            self.met = True
        try:
            self.act(task)
        except ValueError as e:
            return TaskOutcome(name=task.name, status="failed", reason=str(e))
        write_text(task.target, f"made of {task.name}\n")
        return TaskOutcome(name=task.name, status="done", count=len(task.name))

    def act(self, task):
        match task.payload:
            case "die" | "die once":
                before = (self.folder / "log").read_text().count(f"at {task.name} ")
                if task.payload == "die" or before == 1:
                    with replacing(task.target) as temporary:
                        temporary.write_text("half")
                        os.kill(os.getpid(), signal.SIGKILL)
            case "fail":
                raise ValueError("it is not readable")
            case "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "fault":
                raise RuntimeError("a fault of the stage")
            case "hang" | "deaf":
                if task.payload == "deaf":
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                with replacing(task.target) as temporary:
                    temporary.write_text("half")
                    (self.folder / f"hangs-{os.getpid()}").touch()
                    wait_for(lambda: False)


def tasks_of(folder, **payloads):
    """Return ten tasks; the keyword arguments are payloads that make tasks fail."""
    return [
        Task(name=f"t{i}", target=folder / "made" / f"t{i}.h5", payload=payloads.get(f"t{i}"))
        for i in range(10)
    ]


def command(folder, options):
    """Run the tasks, and return 130 if the run is interrupted, as commands of probsa do."""
    payloads = options.pop("payloads", {})
    stage = Toy(folder, **options.pop("stage", {}))
    try:
        run_tasks(stage, tasks_of(folder, **payloads), **options)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    # what a shell runs in the background ignores this signal, and children inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(command(Path(sys.argv[1]), json.loads(sys.argv[2])))
