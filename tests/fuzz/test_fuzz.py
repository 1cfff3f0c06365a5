"""Altered inputs of every kind end in a sentence: no traceback, no hang, nothing left behind."""

from collections import Counter

import pytest
from fuzz.subjects import SUBJECTS
from fuzz.verdicts import FAULTS, Bench

CASES = 300
FOUND = (11250325, 11250352, 11250409, 21251817, 21253993)
"""Found faults: infinity in JSON, a size in an archive, a SystemError, unsigned numbers."""
"""Found faults: infinity in JSON, a size in an archive, a SystemError, unsigned numbers."""


@pytest.mark.slow
def test_no_altered_input_breaks_a_command(tmp_path):
    bench = Bench(tmp_path)
    cases = [bench.run(seed) for seed in (*range(CASES), *FOUND)]
    counts = Counter(case.verdict for case in cases)
    faults = [case for case in cases if case.verdict in FAULTS]
    assert not faults, "\n".join([str(dict(counts)), *map(str, faults)])
    assert {case.subject for case in cases} == {subject.name for subject in SUBJECTS}
    assert counts["clean"] + counts["left out"] > CASES // 4  # the mutations do reach the readers
