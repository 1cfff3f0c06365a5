"""Altered inputs of every kind end in a sentence: no traceback, no hang, nothing left behind."""

from collections import Counter

import pytest
from fuzz.verdicts import FAULTS, Bench

CASES = 500


@pytest.mark.slow
def test_no_altered_input_breaks_a_command(tmp_path):
    bench = Bench(tmp_path)
    cases = [bench.run(seed) for seed in range(CASES)]
    faults = [case for case in cases if case.verdict in FAULTS]
    counts = Counter(case.verdict for case in cases)
    assert not faults, "\n".join([str(dict(counts)), *map(str, faults)])
