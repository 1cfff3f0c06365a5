"""Stage 9: many runs as one experiment: grids, tables with statistics, figures."""
