"""Stages 1 to 3 for many slides: a work folder, laid out as TRIDENT lays out its job folder."""
