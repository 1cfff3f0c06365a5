"""The commands, one file each: `convert_checkpoint.py` is `probsa convert-checkpoint`.

Each has `parser()`, which imports nothing heavy, and `run(arguments)`, which gives the exit status.
"""
