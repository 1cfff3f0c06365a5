"""Blocks that two models or more use."""
