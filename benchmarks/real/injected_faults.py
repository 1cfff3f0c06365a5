"""Faults put into copies of real data and settings: what the command line says of each.

    python benchmarks/real/injected_faults.py --data DIR --scans DIR --log LOG.csv [--only WORDS]

DIR of --data holds ready bags: ct_ich and colon_tiles, each with features/ and labels.csv with
folds. DIR of --scans holds a slice of RSNA (*.dcm) and testing_example.csv. Everything is made in
a temporary folder; features are links, but for those that are changed.

A fault is caught if the command ends with the exit status that it should have (2: refused) and
says the words that a reader needs: which bag, patient, file or key it is. Each kind stands beside
a control, the same without the fault, which must pass.
"""

import argparse
import csv
import shutil
import sys
import tempfile
from pathlib import Path

from fault_bench import Fault, Workshop, probsa
from faults_in_data import copies, flipped, one_class, patients, test_in_validation
from faults_in_input import features, labels, names, releases

KINDS = (
    patients, copies, test_in_validation, flipped, one_class, names, labels, features, releases,
)  # fmt: skip


def tried(fault: Fault, root: Path) -> dict[str, object]:
    """A row of the table."""
    fault.before()
    done = probsa(fault.command)
    said = done.stderr + done.stdout
    if fault.look is not None and done.returncode == 0:
        said = fault.look()
    lacking = [w for w in fault.words if w not in said] + [w for w in fault.never if w in said]
    error = said.partition("probsa: error: ")[2]
    lines = [line for line in said.splitlines() if any(w in line for w in fault.words)]
    message = " ".join((error or " ".join(lines)).split()).replace(f"{root}/", "")
    as_it_should = done.returncode == fault.status and not lacking
    return {
        "fault": fault.what,
        "exit_status": done.returncode,
        "message": message,
        "caught": "yes" if as_it_should else "not looked for" if fault.limit else "NO",
        "lacking": "; ".join(lacking),
    }


def main() -> None:
    """All faults; exit status 1 if one is not caught."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="ct_ich/ and colon_tiles/")
    parser.add_argument("--scans", type=Path, required=True, help="a slice of RSNA, *.dcm")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=[k.__name__ for k in KINDS], help="kinds")
    a = parser.parse_args()
    root = Path(tempfile.mkdtemp())
    shop = Workshop(root, a.data.resolve(), a.scans.resolve())
    rows = []
    for kind in KINDS:
        if a.only and kind.__name__ not in a.only:
            continue
        for fault in kind(shop):
            row = tried(fault, root)
            rows.append(row)
            lacking = f" | lacking: {row['lacking']}" if row["lacking"] else ""
            print(f"{row['caught']:16}{row['exit_status']}  {row['fault']} | ", end="")
            print(f"{str(row['message'])[:400]}{lacking}", flush=True)
    with a.log.open("w", newline="") as f:
        writer = csv.DictWriter(f, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    shutil.rmtree(root)
    missed = [r for r in rows if r["caught"] == "NO"]
    print(f"{len(rows)} faults and controls, {len(missed)} not as they should be")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
