"""Foreign feature formats, one module each."""
