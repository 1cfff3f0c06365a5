"""The figures of an experiment, each with its numbers as CSV."""
