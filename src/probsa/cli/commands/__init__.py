"""The commands, one file each: `train.py` is `probsa train`.

Each has `parser()`, which imports nothing heavy, and `run(arguments)`, which gives the exit status.
"""
