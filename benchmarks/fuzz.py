"""Alter inputs of every kind by seed, and count what the commands do with them.

    python benchmarks/fuzz.py --cases 10000 --out fuzz

The mutations and verdicts are those of `tests/fuzz`. Every 250 cases run in a process of their own,
so that a crash costs one case; it counts as a traceback. `cases.csv` has a row per case, and
`verdicts.md` the table.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path

# in place of this folder, in which `fuzz` would be this file
sys.path[0] = str(Path(__file__).resolve().parents[1] / "tests")

from fuzz.subjects import SUBJECTS  # noqa: E402
from fuzz.verdicts import SECONDS, VERDICTS, Bench, Case  # noqa: E402

SHARE = 250
HEADER = [f.name for f in fields(Case)]


def run_share(first: int, end: int, out: Path) -> None:
    """Run the cases of some seeds, and append a row for each."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, out.open("a", newline="") as f:
        bench, table = Bench(Path(folder)), csv.DictWriter(f, HEADER)
        for seed in range(first, end):
            table.writerow(asdict(bench.run(seed)))
            f.flush()


def run_shares(cases: int, out: Path) -> None:
    """Run all cases that have no row yet; after a crash, go on with the next case."""
    path = out / "cases.csv"
    if not path.exists():
        path.write_text(",".join(HEADER) + "\n")
    while (first := len(rows_of(path))) < cases:
        end = min(first + SHARE, cases)
        command = [sys.executable, __file__, "--share", str(first), str(end), "--out", str(out)]
        # a stuck case is stopped from outside if C code does not return to Python
        ended = run_watched(command, path)
        done = len(rows_of(path))
        if ended != 0 and done < end:
            with path.open("a", newline="") as f:
                csv.DictWriter(f, HEADER, restval="").writerow(
                    {
                        "seed": done,
                        "subject": SUBJECTS[done % len(SUBJECTS)].name,
                        "verdict": "hang" if ended == "stuck" else "traceback",
                        "detail": f"the process ended with {ended}",
                    }
                )
        print(f"{len(rows_of(path))} of {cases} cases", flush=True)


def run_watched(command: list[str], path: Path) -> int | str:
    """Run a share; return its status, or `stuck` if no row was written for a long time."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment)
    size = -1
    while True:
        try:
            return process.wait(timeout=20 * SECONDS)
        except subprocess.TimeoutExpired:
            if path.stat().st_size == size:
                process.kill()
                process.wait()
                return "stuck"
            size = path.stat().st_size


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of the table of cases."""
    with path.open(newline="") as f:
        return list(csv.DictReader(f))


def write_verdicts(out: Path) -> None:
    """Write the number of cases by subject and verdict as a Markdown table."""
    rows = rows_of(out / "cases.csv")
    count = Counter((r["subject"], r["verdict"]) for r in rows)
    names = [s.name for s in SUBJECTS]
    lines = [f"| input | cases | {' | '.join(VERDICTS)} |", "|---" * (len(VERDICTS) + 2) + "|"]
    for name in names:
        of_verdict = [count[name, v] for v in VERDICTS]
        lines.append(f"| {name} | {sum(of_verdict)} | {' | '.join(map(str, of_verdict))} |")
    totals = [sum(count[name, v] for name in names) for v in VERDICTS]
    lines.append(f"| **all** | {sum(totals)} | {' | '.join(map(str, totals))} |")
    text = "\n".join(lines) + "\n"
    (out / "verdicts.md").write_text(text)
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--share", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.share:
        run_share(*args.share, args.out / "cases.csv")
        return
    run_shares(args.cases, args.out)
    write_verdicts(args.out)


if __name__ == "__main__":
    main()
