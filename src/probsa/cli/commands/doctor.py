"""probsa doctor: what is installed here, and what works."""

from ._shared import Parser, write_json


def run(arguments: list[str]) -> int:
    """probsa doctor."""
    parser = Parser(
        prog="probsa doctor",
        description="Tries every reader, device and encoder, and says what works. Exit status 1 if "
        "something that is installed is broken.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from rich.table import Table

    from ..doctor import examine, to_dict
    from ..terminal import OUT

    checks = list(examine())
    if a.json:
        write_json(to_dict(checks))
    else:
        table = Table("", "", "status", "detail", box=None, pad_edge=False)
        for c in checks:
            table.add_row(c.area, c.name, c.status, c.detail)
        OUT.print(table, markup=False)
    return 1 if any(c.status == "broken" for c in checks) else 0
