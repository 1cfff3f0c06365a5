"""probsa encoders: the encoders, their licences and what they need."""

from ._shared import Parser, write_json


def run(arguments: list[str]) -> int:
    """probsa encoders."""
    parser = Parser(prog="probsa encoders", description="The encoders, or what is known of one.")
    parser.add_argument("name", nargs="?", help="an encoder, to see it alone")
    parser.add_argument("--markdown", action="store_true", help="the page docs/encoders.md")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from ...features import catalogue_lines, catalogue_page, catalogue_rows, readiness
    from ..terminal import OUT

    if a.markdown:
        OUT.print(catalogue_page(), markup=False, soft_wrap=True, highlight=False, end="")
    elif a.json:
        rows = [{**row, "here": readiness(str(row["name"]))} for row in catalogue_rows(a.name)]
        write_json(rows if a.name is None else rows[0])
    else:
        said = [*catalogue_lines(a.name)]
        if a.name is not None:
            said.append(f"    here: {readiness(a.name)}")
        OUT.print("\n".join(said), markup=False, soft_wrap=True)
    return 0
