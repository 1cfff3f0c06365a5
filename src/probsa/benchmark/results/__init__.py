"""What the run folders of an experiment hold, in the shape that tables need."""
