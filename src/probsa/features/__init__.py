"""Stage 3: encoders by name: the pixels of a patch become numbers."""
