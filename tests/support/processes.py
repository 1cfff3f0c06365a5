"""Scripts that run in several processes, with what torchrun gives each of them."""

import socket
from pathlib import Path

from support.forks import begin


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_script(script: Path, *arguments: object, processes: int) -> None:
    """Run a script in one process, or in several with gloo; fail with its messages."""
    port, program = str(free_port()), script.read_text()
    begun = []
    for rank in map(str, range(processes)):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(processes)}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        several = {**place, **address} if processes > 1 else {}
        begun.append(begin(program, *arguments, environment=several))
    ended = [process.wait() for process in begun]
    assert not any(ended), "\n".join(process.errors()[-3000:] for process in begun)
