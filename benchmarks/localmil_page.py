"""One leaderboard from the recorded tables of LocalMIL's data sets.

    python benchmarks/localmil_page.py [--tables benchmarks/localmil] [--out FOLDER]

The sets are run one after another (`probsa benchmark recipes/localmil.yaml --data SET=…`), and each
leaves a `leaderboard_SET.csv`, which is kept here as `SET.csv`. This script reads these tables and
writes the leaderboard over all of them by the package's own code: the page that one run of the
recipe over all sets writes. Values are those of the tables, so nothing is computed again but
means, ranks and their test. Tables that were recorded before gains were adjusted for the number of
methods have no column `gain_winner`: there, Holm's adjustment is applied to p computed from the
intervals, which are taken as normal. They also lack what was measured later: `one_seed/SET.csv` is
the table of a later run of some methods with one seed, whose area of deletion and AP of the shown
score are shown in their rows, and whose other methods are added.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from scipy.stats import norm

from probsa.benchmark.leaderboard.measures import SetBoard, Value
from probsa.benchmark.leaderboard.page import to_html
from probsa.benchmark.leaderboard.tables import MEASURES, leaderboard_table
from probsa.benchmark.leaderboard.writing import TITLE
from probsa.benchmark.tables.formats import to_markdown
from probsa.core import TextTable
from probsa.core.files import write_text
from probsa.statistics import ALPHA, holm

BAGS = {
    "ct_ich": (82, 36),
    "colon_tiles": (100, 51),
    "apnea": (1099, 477),
    "magnetic_tiles": (499, 242),
}
"""By set: the test bags, and the positive ones with instances of both labels."""
LATER = ("ap_shown", "area")
"""Measures that the first tables lack."""
NULL = " (null)"
PERCENT = ("percent", "points")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and print the first table."""
    parser = argparse.ArgumentParser(description="One leaderboard from the recorded tables.")
    here = Path(__file__).parent / "localmil"
    parser.add_argument("--tables", type=Path, default=here, help="folder of SET.csv")
    parser.add_argument("--out", type=Path, default=here, help="folder for leaderboard.html")
    given = parser.parse_args(arguments)
    boards = [board(given.tables / f"{name}.csv", name) for name in BAGS]
    table = leaderboard_table(boards)
    write_text(given.out / "leaderboard.md", to_markdown(table))
    write_text(given.out / "leaderboard.html", to_html(table, title=TITLE))
    print(to_markdown(replace(table, follow=())))
    return 0


def board(path: Path, name: str) -> SetBoard:
    """Return what the table of a data set says."""
    rows = {row["method"].removesuffix(NULL): row for row in TextTable.read(path).rows}
    known = set(next(iter(rows.values())))
    later = path.parent / "one_seed" / path.name
    for row in TextTable.read(later).rows if later.is_file() else []:
        own = rows.setdefault(row["method"].removesuffix(NULL), row)
        for key in (f"{measure}{end}" for measure in LATER for end in ("", "_low", "_high")):
            own.setdefault(key, row.get(key) or "")
    nulls = frozenset(n for n, row in rows.items() if row["method"].endswith(NULL))
    values = {
        measure: {
            method: _value(row, measure, scale=0.01 if unit in PERCENT else 1.0)
            for method, row in rows.items()
        }
        for measure, _, unit in MEASURES
    }
    for measure in ("gain", "doubt_gain"):
        if f"{measure}_winner" not in known:
            trained = {m: v for m, v in values[measure].items() if m not in nulls}
            values[measure] = {**values[measure], **_adjusted(trained)}
    bags, positive = BAGS[name]
    return SetBoard(
        data=name,
        names=tuple(rows),
        nulls=nulls,
        values=values,
        best_null=max(nulls, key=lambda n: values["ap"][n].value or 0.0),
        bags=bags,
        positive=positive,
    )


def _adjusted(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return which differences are above 0 by Holm's adjustment, with p from the intervals."""
    known = {
        name: (v.value, v.value - v.low)
        for name, v in values.items()
        if v.value is not None and v.low is not None
    }
    p = [
        2 * norm.sf(norm.ppf(0.975) * abs(d) / half) if half else 1.0 for d, half in known.values()
    ]
    adjusted = dict(zip(known, holm(p), strict=True))
    return {
        name: replace(v, wins=adjusted.get(name, 1.0) <= ALPHA and (v.value or 0) > 0)
        for name, v in values.items()
    }


def _value(row: Mapping[str, str], measure: str, *, scale: float) -> Value:
    def number(key: str) -> float | None:
        return float(text) * scale if (text := row.get(key)) else None

    return Value(
        value=number(measure),
        low=number(f"{measure}_low"),
        high=number(f"{measure}_high"),
        wins=row.get(f"{measure}_winner") == "1",
    )


if __name__ == "__main__":
    raise SystemExit(main())
