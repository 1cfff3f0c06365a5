"""The commands, one a file: `convert_checkpoint.py` is `probsa convert-checkpoint`.

Each has `run(arguments) -> exit status`; what it needs is imported when it runs.
"""
