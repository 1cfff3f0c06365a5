"""Prepare published data sets and a user's own cohort for training."""
