"""probsa verify: reads a folder whole and says what is wrong with it."""

from pathlib import Path

from ._shared import Parser, write_json


def run(arguments: list[str]) -> int:
    """probsa verify."""
    parser = Parser(
        prog="probsa verify",
        description="Reads every file of a work folder, or of a folder of features, and says what "
        "is wrong and what to do. Changes nothing. Exit status 1 if anything is wrong.",
    )
    parser.add_argument("folder", type=Path, help="work folder, or folder of features")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from ...cohorts import verify
    from ..terminal import OUT

    found = verify(a.folder)
    if a.json:
        write_json(found.to_dict())
    else:
        found.render(OUT)
    return 1 if found.findings else 0
