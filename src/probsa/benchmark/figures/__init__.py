"""The figures of an experiment, one module each, with their numbers as CSV."""
