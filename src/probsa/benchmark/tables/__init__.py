"""The tables of an experiment as markdown, LaTeX and CSV."""
