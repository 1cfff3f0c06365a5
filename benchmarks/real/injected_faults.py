"""Inject faults into copies of real data and settings, and check the command line's messages.

    python benchmarks/real/injected_faults.py --data DIR --scans DIR --log LOG.csv [--only WORDS]

The folder of --data holds the ready bags ct_ich and colon_tiles, each with features/ and a
labels.csv with folds. The folder of --scans holds a slice of RSNA (*.dcm) and testing_example.csv.
All copies are made in a temporary folder, with links to the features that are not changed.

A fault is caught if the command ends with the expected exit status (2: rejected) and its message
contains the words that a reader needs: the bag, patient, file or key. Controls without a fault must
pass.
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


def check(fault: Fault, root: Path) -> dict[str, object]:
    """Run the command of a fault and return a row of the table."""
    fault.before()
    done = probsa(fault.command)
    output = done.stderr + done.stdout
    if fault.look is not None and done.returncode == 0:
        output = fault.look()
    lacking = [w for w in fault.words if w not in output] + [w for w in fault.never if w in output]
    error = output.partition("probsa: error: ")[2]
    lines = [line for line in output.splitlines() if any(w in line for w in fault.words)]
    message = " ".join((error or " ".join(lines)).split()).replace(f"{root}/", "")
    caught = done.returncode == fault.status and not lacking
    return {
        "fault": fault.what,
        "exit_status": done.returncode,
        "message": message,
        "caught": "yes" if caught else "not checked" if fault.limit else "NO",
        "lacking": "; ".join(lacking),
    }


def main() -> None:
    """Check all faults; exit with status 1 if one is not caught."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with ct_ich/ and colon_tiles/"
    )
    parser.add_argument(
        "--scans", type=Path, required=True, help="folder with a slice of RSNA, *.dcm"
    )
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument(
        "--only", nargs="+", choices=[k.__name__ for k in KINDS], help="kinds of faults"
    )
    a = parser.parse_args()
    root = Path(tempfile.mkdtemp())
    shop = Workshop(root, a.data.resolve(), a.scans.resolve())
    rows = []
    for kind in KINDS:
        if a.only and kind.__name__ not in a.only:
            continue
        for fault in kind(shop):
            row = check(fault, root)
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
    print(f"{len(rows)} faults and controls, {len(missed)} with an unexpected result")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
