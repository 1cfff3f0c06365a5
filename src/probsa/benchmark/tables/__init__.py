"""The tables of an experiment, one module each."""
