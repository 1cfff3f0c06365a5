"""Stage 1: slides and scans: what is read, whatever the format."""
