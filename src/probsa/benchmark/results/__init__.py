"""Read the run folders of an experiment and compute what its tables and figures show."""
