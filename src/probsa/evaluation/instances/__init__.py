"""Labelled instances as rows of one table, and measures of them as functions of its columns."""
