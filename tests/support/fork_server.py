"""Import the package once, then fork a process for every program that is asked for."""

import atexit
import importlib
import json
import os
import pkgutil
import signal
import sys
import traceback

PRELOADED = (
    "matplotlib.figure",
    "probsa.benchmark.execution.running",
    "probsa.cli.entry",
    "probsa.cohorts.flow",
    "probsa.datasets.conversion",
    "probsa.evaluation.report",
    "probsa.exports.folder",
    "probsa.maps.folder",
    "probsa.maps.sources",
    "probsa.training.loop",
    "probsa.workflow",
    "sklearn.model_selection",
    "torch._dynamo",
    "torch.testing._internal.distributed.fake_pg",
)
# with every module that is in them
ROOMS = ("probsa.cli.commands", "probsa.models")


def preload() -> None:
    for name in (*PRELOADED, *ROOMS):
        importlib.import_module(name)
    for name in ROOMS:
        for module in pkgutil.iter_modules(sys.modules[name].__path__, f"{name}."):
            importlib.import_module(module.name)


def status_of(program: str) -> int:
    """Run a program as the interpreter does, and return its exit status."""
    try:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 1
    return 0


def run(request: dict) -> None:
    for stream, name in ((0, os.devnull), (1, request["output"]), (2, request["errors"])):
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(file, stream)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.argv = ["-c", *request["arguments"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = 1
    try:
        status = status_of(request["program"])
        atexit._run_exitfuncs()
        sys.stdout.flush()
    finally:
        os._exit(status)


def answer(request: dict) -> int | None:
    if "wait" in request:
        pid, status = os.waitpid(request["wait"], os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None
    pid = os.fork()
    if not pid:
        os.close(ANSWERS)
        run(request)
    return pid


if __name__ == "__main__":
    # what the tests are interrupted by is theirs to pass on
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ANSWERS = os.dup(sys.stdout.fileno())
    preload()
    for line in sys.stdin:
        os.write(ANSWERS, (json.dumps(answer(json.loads(line))) + "\n").encode())
