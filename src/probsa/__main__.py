"""Run the command line: `python -m probsa`."""

import sys

from .cli import main

sys.exit(main())
