"""Labelled instances as rows of one table, and every measure of them as a function of its columns."""
