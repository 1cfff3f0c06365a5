"""Grids: models × data sets × splits × seeds × λ, and their cells."""
