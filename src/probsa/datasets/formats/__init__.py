"""Feature formats of other tools, one module each."""
