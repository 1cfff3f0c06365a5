"""Run LocalMIL: check the sets, train and test every model, check its maps, write the leaderboard.

    python benchmarks/localmil/run.py DIR --out OUT [--sets NAME ...] [--models NAME ...]
        [--KEY VALUE ...]

DIR contains a folder for each set. The models and their settings are those of grid.yaml beside this
file; further flags are keys of the grid or of `probsa train`, such as `--seeds 1
--splits 0,1 --epochs 5`. An interrupted run continues by the same command.
"""

import argparse
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml
from leaderboard import write_leaderboard
from map_checks import check_maps
from sets import CheckedSet, check_sets

from probsa.benchmark import read_grid, run_grid
from probsa.core import write_json
from probsa.errors import ProbSAError

GRID = Path(__file__).with_name("grid.yaml")


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description="Run LocalMIL.")
    parser.add_argument("data", type=Path, help="folder of the sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of the experiment")
    parser.add_argument("--sets", nargs="+", default=[], help="names of sets; default: all")
    parser.add_argument("--models", nargs="+", default=[], help="models or labels; default: all")
    parser.add_argument("--workers", type=int, default=1, help="processes that train at a time")
    parser.add_argument(
        "--left-out-bags",
        type=int,
        default=10,
        help="positive test bags per run that models without a closed form predict again",
    )
    arguments, keys = parser.parse_known_args()
    overrides = run_keys(keys)
    sets = check_sets(arguments.data, arguments.sets)
    for checked in sets:
        print(
            f"{checked.name}: {checked.bags} bags ({checked.positive_bags} positive) in "
            f"{checked.folds} folds; {checked.instances:,} instances "
            f"({checked.positive_instances:,} positive); graph: {checked.description.graph}"
        )
    grid_keys = grid_of(sets, arguments.models)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "localmil.yaml"
        path.write_text(yaml.safe_dump(grid_keys), encoding="utf-8")
        grid = read_grid(path, overrides=overrides, out=arguments.out)
    states = run_grid(grid, arguments.out, workers=arguments.workers)
    failures = [f"{s.cell.name}: {s.reason}" for s in states if s.status != "done"]
    write_json(arguments.out / "sets.json", [s.to_dict() for s in sets])
    failures += check_maps(arguments.out, bags=arguments.left_out_bags)
    for path in write_leaderboard(arguments.out):
        print(path)
    if failures:
        raise SystemExit("\n".join(failures))


def grid_of(sets: Sequence[CheckedSet], models: Sequence[str]) -> dict[str, Any]:
    """Return grid.yaml for these sets, and for some of its models (all if none is named)."""
    grid = yaml.safe_load(GRID.read_text(encoding="utf-8"))
    entries = {label_of(entry): entry for entry in grid["models"]}
    for name in models:
        if name not in entries:
            raise SystemExit(f"no model {name!r} in {GRID.name}: it has {', '.join(entries)}")
    names = models or list(entries)
    grid["models"] = [entries[name] for name in names]
    grid["data"] = {s.name: {**grid["data"], **s.keys()} for s in sets}
    rules = []
    for rule in grid["exceptions"]:
        data = [s.name for s in sets if s.name in rule.get("data", [s.name])]
        patterns = rule.get("models", ["*"])
        matches = [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]
        if data and matches:
            rules.append({**rule, "data": data, "models": matches})
    grid["exceptions"] = rules
    return grid


def label_of(entry: str | dict[str, Any]) -> str:
    """Return the name of a method of the grid."""
    return entry if isinstance(entry, str) else entry.get("label", entry["name"])


def run_keys(given: Sequence[str]) -> dict[str, str]:
    """Return keys of the grid from `--key value` flags."""
    names = given[::2]
    values = given[1::2]
    if len(names) != len(values) or not all(name.startswith("--") for name in names):
        raise SystemExit(f"expected --KEY VALUE, but got {' '.join(given)}")
    return {name[2:].replace("-", "_"): value for name, value in zip(names, values, strict=True)}


if __name__ == "__main__":
    try:
        main()
    except ProbSAError as error:
        raise SystemExit(str(error)) from error
