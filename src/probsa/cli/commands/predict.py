"""probsa predict: predict every bag of a folder with a trained run."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser

from ._shared import (
    add_json_flag,
    add_limit_flag,
    command_parser,
    exit_status,
    parse_arguments,
    stated_limit,
    write_json,
)

DESCRIPTION = """\
Predict every bag of a folder of features with a trained run, or with several."""


def parser() -> ArgumentParser:
    """Return the parser of `probsa predict`."""
    parser = command_parser("predict", DESCRIPTION)
    add = parser.add_argument
    add(
        "run", type=Path, nargs="+", metavar="RUN",
        help="Run folder, or a model that probsa convert-checkpoint wrote. Several, such as those "
        "of a cross-validation, are combined: each bag is predicted by the runs that were neither "
        "trained nor validated on it.",
    )  # fmt: skip
    add("--features", type=Path, required=True, metavar="DIR", help="Folder of feature files.")
    add("--out", type=Path, required=True, metavar="DIR", help="Folder for the predictions.")
    add(
        "--labels", type=Path, metavar="CSV",
        help="Table of labels to include in the table of predictions.",
    )  # fmt: skip
    add(
        "--checkpoint", choices=("best", "last"), default="best",
        help="Weights that the run's `select` chose (by default, those of the epoch with the best "
        "validation AUROC), or those of the last epoch. Default: best.",
    )  # fmt: skip
    add(
        "--device", choices=("auto", "cpu", "cuda", "mps"), default="auto",
        help="Device to predict on. Default: auto, which is cuda if there is one, else mps, else "
        "cpu.",
    )  # fmt: skip
    add(
        "--other-features", action="store_true",
        help="Also predict bags with an encoder, kind, resolution or patch size that no training "
        "bag had.",
    )  # fmt: skip
    add(
        "--faithfulness", action="store_true",
        help="Also remove the instances of each bag, most and least relevant first, and store how "
        "the prediction changes; probsa evaluate then summarises it. Without a closed form, the "
        "model predicts each bag more than 100 times.",
    )  # fmt: skip
    add("--overwrite", action="store_true", help="Replace existing predictions.")
    add_limit_flag(parser)
    add_json_flag(parser)
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run `probsa predict`."""
    args = parse_arguments(parser(), arguments)
    from ...workflow import predict_folder
    from ..terminal import ERR, OUT, counting

    with stated_limit(args), counting("predicting") as count:
        predicted = predict_folder(
            args.run,
            args.features,
            out=args.out,
            labels=args.labels,
            checkpoint=args.checkpoint,
            device=args.device,
            other_features=args.other_features,
            faithfulness=args.faithfulness,
            overwrite=args.overwrite,
            on_bag=count,
        )
    if args.json:
        write_json(
            {
                "predictions": str(predicted.folder),
                "bags": predicted.bags,
                "failed": [{"bag": b, "reason": r} for b, r in predicted.failures],
                "other_features": [{"bag": b, "difference": d} for b, d in predicted.other],
            }
        )
    else:
        table = predicted.folder / "predictions.csv"
        OUT.print(f"{predicted.bags} bags predicted: {table}", markup=False)
    if predicted.other:
        first, _ = predicted.other[0]
        ERR.print(
            f"{len(predicted.other)} bags differ from every training bag and were predicted "
            f"anyway (--other-features): {first!r}{', …' if predicted.other[1:] else ''}",
            markup=False,
        )
    return exit_status(predicted.failures, as_json=args.json)
