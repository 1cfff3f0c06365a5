"""probsa doctor."""

from ..command import Answer


def run() -> Answer:
    """Check what is installed, and try every reader, device and encoder.

    The exit status is 1 if something that is installed does not work.
    """
    from rich.table import Table

    from ..doctor import examine, to_dict

    checks = list(examine())
    table = Table("", "", "status", "detail", box=None, pad_edge=False)
    for check in checks:
        table.add_row(check.area, check.name, check.status, check.detail)
    broken = any(check.status == "broken" for check in checks)
    return Answer(to_dict(checks), lambda out: out.print(table, markup=False), status=int(broken))
