"""Stage 2: tissue, and the patches that hold it."""
