"""Run the command line: `python -m probsa`."""

import os
import signal
import sys


def main() -> int:
    """Run the command of `sys.argv`; a signal ends the process without a traceback."""
    for number in (signal.SIGTERM, signal.SIGINT):  # nothing is to be removed while modules load
        signal.signal(number, lambda number, _: os._exit(128 + number))
    from .cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
