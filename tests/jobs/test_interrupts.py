"""An interrupt ends the work wherever it arrives."""

import signal
import subprocess
import sys
import time
import weakref

import pytest

from probsa.jobs import sigterm_as_interrupt


class Thing:
    pass


def finalizer():
    class Final:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    del_me = Final()
    del del_me


def callback():
    thing = Thing()
    watch = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
    del thing
    return watch


@pytest.mark.parametrize("where", [finalizer, callback])
def test_where_python_discards_exceptions_it_is_raised_again(where, capfd):
    hook, handler = sys.unraisablehook, signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        where()
        for _ in range(1000):  # the interrupt does not end a sleep
            time.sleep(0.01)
    assert (sys.unraisablehook, signal.getsignal(signal.SIGTERM)) == (hook, handler)
    assert capfd.readouterr().err == ""


def test_other_discarded_exceptions_are_shown_as_before(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: shown.append(lost.exc_type))

    class Faulty:
        def __del__(self):
            raise ValueError

    with sigterm_as_interrupt():
        del_me = Faulty()
        del del_me
    assert shown == [ValueError]


def test_a_forked_process_ends_at_once():
    script = """
import os, signal, sys, time
from probsa.jobs import sigterm_as_interrupt
with sigterm_as_interrupt():
    child = os.fork()
    if not child:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:  # not reached: the child has nothing to clean up
            os._exit(1)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == 128 + signal.SIGTERM
