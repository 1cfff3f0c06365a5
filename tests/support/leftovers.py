"""Names of temporary files, as processes leave them that are killed."""

import subprocess
import sys
from functools import cache
from pathlib import Path

from probsa.core import writers


@cache
def dead_pid() -> int:
    """Return the number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def temporary_of(path: Path, *, pid: int | None = None) -> Path:
    """Return a temporary file of a path; None: of a process that has ended."""
    number = dead_pid() if pid is None else pid
    started = "0" if pid is None else writers.start_time(pid) or ""
    machine = writers._short(writers.machine_name())
    token = f"01234567_{machine}_{number:x}_{writers._short(started)}"
    return path.with_name(f".{path.name}.{token}.tmp")
