"""probsa run: from slides or scans to predictions and maps, with a trained run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from ._shared import (
    add_json_flag,
    add_limit_flag,
    command_parser,
    exit_status,
    parse_arguments,
    stated_limit,
    write_json,
)

if TYPE_CHECKING:
    from ...workflow import PipelineResult

DESCRIPTION = """\
Predict new slides or scans with a trained run, and draw where the evidence is.

The slides are cut into patches and encoded as the training features of the run were. OUT gets
work/, predictions/, maps/ and page/, the same as from probsa patch, extract, predict, map and
view --export. An interrupted command continues where it stopped."""


def parser() -> ArgumentParser:
    """Return the parser of `probsa run`."""
    parser = command_parser("run", DESCRIPTION)
    add = parser.add_argument
    add("source", type=Path, metavar="INPUT",
        help="Folder of slides, DICOM studies or NIfTI files, or one of them.")  # fmt: skip
    add(
        "--model", type=Path, nargs="+", required=True, metavar="RUN",
        help="Run folder. Several, such as those of a cross-validation, are combined.",
    )  # fmt: skip
    add("--out", type=Path, required=True, metavar="OUT", help="Folder to write to.")
    add(
        "--labels", type=Path, metavar="CSV",
        help="Table of labels to include in the table of predictions.",
    )  # fmt: skip
    add(
        "--weights", metavar="FILE|URL|hub",
        help="Weights of the run's encoder, if it needs any: those of the training.",
    )  # fmt: skip
    add(
        "--slide-mpp", metavar="MPP|CSV",
        help="Micrometres per level-0 pixel of slides that do not state it, or a table with the "
        "columns slide and mpp, which takes precedence over the files.",
    )  # fmt: skip
    add(
        "--device", choices=("auto", "cpu", "cuda", "mps"), default="auto",
        help="Device of the encoder and of the model. Default: auto, which is cuda if there is "
        "one, else mps, else cpu.",
    )  # fmt: skip
    add(
        "--readers", type=int, metavar="N",
        help="Number of processes that read and decode patches. Default: half of the cores.",
    )  # fmt: skip
    add(
        "--other-features", action="store_true",
        help="Also predict slides whose resolution or patch size no training bag had.",
    )  # fmt: skip
    _add_flags_of_features(parser)
    add_limit_flag(parser)
    add_json_flag(parser)
    return parser


def _add_flags_of_features(parser: ArgumentParser) -> None:
    title = "for runs that do not state how their features were made"
    add = parser.add_argument_group(title).add_argument
    add("--encoder", metavar="NAME", help="Encoder of the training features.")
    add("--patch-size", type=int, metavar="PIXELS", help="Side of the patches.")
    add("--mpp", type=float, metavar="MPP", help="Micrometres per pixel of the patches.")


def run(arguments: Sequence[str]) -> int:
    """Run `probsa run`."""
    args = parse_arguments(parser(), arguments)
    from ...workflow import StatedRecipe, recipe_of_runs, run_pipeline
    from ..terminal import ERR, counting, counting_outcomes

    stated = StatedRecipe(encoder=args.encoder, patch_size=args.patch_size, mpp=args.mpp)
    recipe, remark = recipe_of_runs(args.model, stated)
    if remark:
        ERR.print(remark, markup=False, soft_wrap=True)
    over_slides = ("patching", "extracting")
    with stated_limit(args):
        result = run_pipeline(
            args.source,
            runs=args.model,
            out=args.out,
            recipe=recipe,
            options=_options(args),
            watch=lambda step: (counting_outcomes if step in over_slides else counting)(step),
        )
    _report(result, as_json=args.json)
    return exit_status(result.failures, as_json=args.json)


def _options(args: Namespace):  # noqa: ANN202 - the type is imported only when the command runs
    from ...jobs import cores
    from ...slides import read_resolutions
    from ...training import choose_device
    from ...workflow import PipelineOptions

    readers = max(1, cores() // 2) if args.readers is None else args.readers
    return PipelineOptions(
        weights=args.weights,
        device=choose_device(args.device).type,
        slide_mpp=None if args.slide_mpp is None else read_resolutions(args.slide_mpp),
        labels=args.labels,
        other_features=args.other_features,
        readers=readers,
        threads=max(1, cores() - readers),
    )


def _report(result: "PipelineResult", *, as_json: bool) -> None:
    from ...core import counted
    from ..terminal import OUT

    if as_json:
        write_json(
            {
                "predictions": str(result.predictions),
                "maps": str(result.maps),
                "page": str(result.page),
                "bags": result.predicted,
                "kept": result.kept,
                "stages": [report.to_dict() for report in result.reports],
                "failed": [{"bag": b, "reason": r} for b, r in result.failures],
            }
        )
        return
    kept = " earlier, and kept" if result.kept else ""
    table = result.predictions / "predictions.csv"
    OUT.print(f"{counted(result.predicted, 'bag')} predicted{kept}: {table}", markup=False)
    OUT.print(f"maps: {result.maps}", markup=False)
    OUT.print(f"page: {result.page / 'index.html'}", markup=False)
