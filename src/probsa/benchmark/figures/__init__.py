"""Figures of an experiment, from its run folders alone: one figure a file, numbers as CSV beside."""
