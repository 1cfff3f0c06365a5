"""A signal ends the process wherever it arrives, and what is unfinished is removed first."""

import os
import signal
from pathlib import Path

import pytest
from support import forks
from support.toy_stage import wait_for

from probsa.core import orderly_stop, stoppable

HEAD = """
import os, signal, sys, time, weakref
from pathlib import Path
from probsa.core import orderly_stop, replacing, replacing_folder, stoppable, unstoppable
folder = Path(sys.argv[1])
stop = lambda *_: signal.raise_signal(signal.SIGTERM)
"""
IN_HDF5 = """
import io, h5py
class Sink(io.BytesIO):
    def write(self, data):
        stop()
        return super().write(data)
with h5py.File(Sink(), "w") as f:
    f["x"] = [1]
"""
FINALIZER = """
class Final:
    __del__ = stop
Final()
"""
CALLBACK = """
class Thing: pass
thing = Thing()
watch = weakref.ref(thing, stop)
del thing
"""
FILE = """
with replacing(folder / "x") as temporary:
    temporary.write_text("half")
    stop()
"""
FOLDER = """
with replacing_folder(folder / "x") as new:
    (new / "half").mkdir()
    with replacing(new / "y"):
        stop()
"""
CHILD = """
import multiprocessing
context = multiprocessing.get_context("spawn")
queue = context.Queue()  # its semaphores are removed without a warning
child = context.Process(target=time.sleep, args=(600,))
child.start()
print(child.pid, flush=True)
stop()
"""
ORPHAN = """
import multiprocessing
from support.toy_stage import wait_for, wait_with_parent
there = folder / "there"
child = multiprocessing.get_context("spawn").Process(target=wait_with_parent, args=(there,))
child.start()
wait_for(there.exists)
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
SWALLOWED = """
try:
    stop()
except BaseException:
    pass
"""
UNSTOPPABLE = """
with unstoppable():
    stop()
    print("done", flush=True)
"""
FORKED = """
with replacing(folder / "x") as temporary:
    child = os.fork()
    if not child:
        stop()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(temporary.exists(), code)
"""


def stopped(program: str, *arguments: object) -> forks.Fork:
    """Return the ended process of a program that a signal stops."""
    lines = "".join(f"    {line}\n" for line in program.splitlines())
    return forks.run(
        f"{HEAD}with stoppable(message='stopped\\n'):\n{lines}print('went on')", *arguments
    )


def has_ended(pid: int) -> bool:
    """Return whether a process of somebody else has ended, even if nobody has waited for it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        # it has ended since, or this system has no /proc: the next call tells
        return False
    # the name of the program, in brackets, may hold spaces
    state = stat.rpartition(")")[2].split()[0]
    return state in {"Z", "X"}


def test_a_process_that_runs_has_not_ended():
    assert not has_ended(os.getpid())


@pytest.mark.parametrize("program", [IN_HDF5, FINALIZER, CALLBACK, FILE, FOLDER, SWALLOWED])
def test_a_signal_leaves_nothing_wherever_it_comes(tmp_path, program):
    done = stopped(program, tmp_path)
    assert (done.returncode, done.errors(), done.output()) == (143, "stopped\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("program", "status", "errors"), [(CHILD, 143, "stopped\n"), (ORPHAN, -signal.SIGKILL, "")]
)
def test_children_end_with_their_parent(tmp_path, program, status, errors):
    done = stopped(program, tmp_path)
    assert (done.returncode, done.errors()) == (status, errors)
    child = int(done.output())
    wait_for(lambda: has_ended(child))


def test_what_must_not_be_torn_is_finished_first(tmp_path):
    done = stopped(UNSTOPPABLE, tmp_path)
    assert (done.returncode, done.output()) == (143, "done\n")


def test_a_forked_process_ends_at_once_and_removes_nothing(tmp_path):
    done = stopped(FORKED, tmp_path)
    assert done.output() == "True 143\nwent on\n"


def test_work_with_a_cleanup_of_its_own_gets_an_exception_and_handlers_are_put_back():
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), stoppable(), orderly_stop():
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: False)
    assert signal.getsignal(signal.SIGTERM) == handler
