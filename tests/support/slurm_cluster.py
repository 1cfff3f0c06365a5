"""A Slurm controller and two nodes on this machine, in a temporary folder, for some tests."""

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.processes import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo")
SECONDS = 30
SETTINGS = """\
ClusterName=probsa
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=1
PartitionName=main Nodes=node1,node2 Default=YES State=UP
"""


class NoCluster(Exception):
    """The daemons are not installed, or cannot start here."""


@contextmanager
def slurm_cluster() -> Iterator[Path]:
    """Run a cluster with the partition `main`; yield its settings, for SLURM_CONF.

    Raises:
        NoCluster: with the reason.
    """
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise NoCluster(f"not installed: {', '.join(missing)}")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # the path of a socket must be short
    folder.chmod(0o755)
    for name in ("state", "node1", "node2"):
        (folder / name).mkdir()
    settings = folder / "slurm.conf"
    ports = {"controller": free_port(), "first": free_port(), "second": free_port()}
    names = {"host": socket.gethostname(), "user": getpass.getuser(), "folder": folder}
    settings.write_text(SETTINGS.format(**ports, **names))
    (folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
    key = folder / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    munged = ["munged", "--foreground", "--force", f"--key-file={key}"]
    munged += [f"--{name}-file={folder / name}" for name in ("pid", "log", "seed")]
    commands = [
        [*munged, f"--socket={folder / 'munge'}"],
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", "node1"],
        ["slurmd", "-D", "-N", "node2"],
    ]
    environment = os.environ | {"SLURM_CONF": str(settings)}
    daemons = []
    said = folder / "said"
    try:
        for command in commands:
            with said.open("ab") as log:
                daemon = subprocess.Popen(
                    command, env=environment, stdout=log, stderr=log, start_new_session=True
                )
            daemons.append(daemon)
            if command[0] == "munged":
                _wait(folder.joinpath("munge").exists, said)

        def idle() -> bool:
            asked = subprocess.run(
                ["sinfo", "--noheader", "--Node", "--format=%T"],
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            return asked.stdout.split() == ["idle", "idle"]

        _wait(idle, said)
        yield settings
    finally:
        _cancel_all(environment)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _cancel_all(environment: dict[str, str]) -> None:
    """Cancel all jobs and wait for their end: no controller would end them later."""
    asked = {"env": environment, "capture_output": True, "timeout": SECONDS, "check": False}
    until = time.monotonic() + SECONDS
    try:
        subprocess.run(["scancel", f"--user={getpass.getuser()}"], **asked)
        while subprocess.run(["squeue", "--noheader"], **asked).stdout.strip():
            if time.monotonic() > until:
                return
            time.sleep(0.1)
    except (OSError, subprocess.TimeoutExpired):
        return  # the controller did not start


def _wait(ready, said: Path) -> None:
    until = time.monotonic() + SECONDS
    while not ready():
        if time.monotonic() > until:
            last = said.read_text(errors="replace").splitlines()[-5:]
            raise NoCluster("the daemons do not start: " + " | ".join(last))
        time.sleep(0.1)
