"""The results of the tests of the MIL assumption, which `probsa benchmark --assumptions` wrote."""

import csv
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

TABLE = "assumptions.csv"


@cache
def _rows() -> tuple[dict[str, Any], ...]:
    text = files("probsa.models").joinpath(TABLE).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def assumption_lines(names: Sequence[str]) -> list[str]:
    """Return a line for each of a method's names that has results, and one for those without."""
    lines, without = [], []
    for name in names:
        own = [row for row in _rows() if row["model"] == name and row["like"]]
        if not own:
            without.append(f"`{name}`")
            continue
        tests = dict.fromkeys(row["test"] for row in own)
        results = [_result(test, [r for r in own if r["test"] == test]) for test in tests]
        lines.append(f"`{name}`: {'; '.join(results)}")
    return [*lines, *([f"{', '.join(without)}: not tested yet"] if without else [])]


def _result(test: str, rows: Sequence[dict[str, Any]]) -> str:
    passed = sum(row["passed"] == "true" for row in rows)
    if len(rows) == 1:
        verdict = "passed" if passed else "failed"
    else:
        verdict = f"passed with {passed} of {len(rows)} seeds"
    values = [
        sum(float(row[column]) for row in rows) / len(rows) for column in ("reversed", "like")
    ]
    return f"{test} {verdict} (AUROC {values[0]:.2f} reversed, {values[1]:.2f} like training)"
