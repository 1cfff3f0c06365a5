"""Measure a method of your own on a set of LocalMIL, as a row beside the leaderboard's.

    python benchmarks/localmil/submit.py runs/*/predictions --set DIR/ct_ich --method "my model"
        --out mine/ct_ich.csv

The folders hold predictions (docs/benchmark.md). Test each fold once with a model that was not
trained on it; give the folders of further seeds as well, so that each bag is tested once per seed.
Labels of bags and instances are those of the set. The row has the columns and units of the
leaderboard and replaces an earlier row of the same name in the file; `page.py` puts it on the page.
Nothing is computed again from the model, so ask for the predictions or the code before you rely on
a row.
"""

import argparse
from pathlib import Path

from measures import HEADER, cells, means, measured

from probsa.core import TextTable, write_csv


def main() -> None:
    """Write the row."""
    parser = argparse.ArgumentParser(description="A row of LocalMIL from predictions.")
    parser.add_argument("predictions", type=Path, nargs="+", help="folders of all folds and seeds")
    parser.add_argument("--set", type=Path, required=True, help="folder of the set")
    parser.add_argument("--method", required=True, help="name of the row")
    parser.add_argument("--out", type=Path, required=True, help="CSV file, named after the set")
    arguments = parser.parse_args()
    values = means(measured(arguments.predictions, arguments.set))
    row = {"method": arguments.method, **cells(values)}
    rows: list[dict[str, str]] = []
    if arguments.out.is_file():
        rows = [r for r in TextTable.read(arguments.out).rows if r["method"] != arguments.method]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_csv(arguments.out, HEADER, [*rows, row])
    print(arguments.method, ", ".join(f"{column} {row[column]}" for column in values))


if __name__ == "__main__":
    main()
