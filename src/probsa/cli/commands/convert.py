"""probsa convert: the bags of one tool as files of another."""

from pathlib import Path
from typing import get_args

from ._shared import Parser, status, write_json


def run(arguments: list[str]) -> int:
    """probsa convert."""
    from ...datasets import ConversionOptions, SourceFormat, TargetFormat, convert
    from ..terminal import OUT, counting

    parser = Parser(
        prog="probsa convert",
        description="Bags of one tool as files of another. What could not be carried stands in "
        "OUT/conversion.csv.",
    )
    parser.add_argument("source", type=Path, help="folder that the tool wrote its features to")
    parser.add_argument(
        "--from", dest="source_format", required=True, choices=get_args(SourceFormat)
    )
    parser.add_argument("--to", dest="target_format", required=True, choices=get_args(TargetFormat))
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument(
        "--slide-mpp", metavar="X|CSV",
        help="µm per level-0 pixel of all slides, or a table slide,mpp: where the files hold none",
    )  # fmt: skip
    parser.add_argument("--labels", type=Path, help="table of labels, written as the target's")
    parser.add_argument("--classes", nargs="+", help="class names in order, where labels are names")
    parser.add_argument("--feature-set", help="which folder of features, where there are several")
    parser.add_argument("--encoder", help="what the features were made with, where nothing says so")
    parser.add_argument("--overwrite", action="store_true", help="replace the bags there")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    options = ConversionOptions(
        slide_mpp=a.slide_mpp,
        labels=a.labels,
        classes=None if a.classes is None else tuple(a.classes),
        feature_set=a.feature_set,
        encoder=a.encoder,
        overwrite=a.overwrite,
    )
    with counting("converting") as count:
        done = convert(
            a.source,
            a.out,
            source_format=a.source_format,
            target_format=a.target_format,
            options=options,
            on_bag=count,
        )
    if a.json:
        write_json(done.to_dict())
        return status(done.failures, as_json=True)
    OUT.print(f"{done.count('converted')} bags converted: {done.out}", markup=False, soft_wrap=True)
    for row in done.rows:
        if row.status == "empty":
            OUT.print(f"empty, left out: {row.bag}", markup=False, soft_wrap=True)
    for text, bags in [*done.losses().items(), *((text, 0) for text in done.lost)]:
        of = f" ({bags} bag{'s' if bags > 1 else ''})" if bags else ""
        OUT.print(f"not carried: {text}{of}", markup=False, soft_wrap=True)
    OUT.print(f"what became of each: {done.report}", markup=False, soft_wrap=True)
    return status(done.failures, as_json=False)
