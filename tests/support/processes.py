"""Scripts that run in several processes, as torchrun starts them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_script(script: Path, *arguments: object, processes: int) -> None:
    """Run a script in one process, or in several with gloo; fail with its messages."""
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
        launcher += [f"--master-port={free_port()}"]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*launcher, str(script), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
