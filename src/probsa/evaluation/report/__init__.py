"""The report of an evaluation: a list of sections of metrics, sentences and figures."""
