"""The report of an evaluation: a list of sections, each a table of metrics, a sentence, a figure."""
