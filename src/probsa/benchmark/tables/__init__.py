"""The tables of an experiment, one a module; writing.py writes them all."""
