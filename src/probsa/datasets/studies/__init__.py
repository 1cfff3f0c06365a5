"""Published data sets, each prepared by one call."""
