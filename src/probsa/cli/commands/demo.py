"""probsa demo: the whole flow on handwritten digits."""

from pathlib import Path

from ._shared import Parser, write_json


def run(arguments: list[str]) -> int:
    """probsa demo."""
    parser = Parser(prog="probsa demo", description="The whole flow on handwritten digits.")
    parser.add_argument("--out", type=Path, default=Path("probsa-demo"), help="where to write")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from ..demo import run_demo
    from ..terminal import OUT, training_bar

    with training_bar() as bar:
        result = run_demo(a.out, reporter=bar)
    if a.json:
        write_json(result.to_dict())
    else:
        result.render(OUT)
    return 0
