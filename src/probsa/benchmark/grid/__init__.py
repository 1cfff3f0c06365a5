"""Read grids: methods, data sets, cells, and the checks before a run."""
