"""probsa predict: predict every bag of a folder with a trained run."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from ...workflow import Predicted

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
        "--covariates", type=Path, metavar="CSV",
        help="Table of the clinical covariates that the run was trained with, for other patients. "
        "Default: that of the run.",
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
    from ...core import counted
    from ...workflow import predict_folder
    from ..terminal import ERR, OUT, counting

    with stated_limit(args), counting("predicting") as count:
        predicted = predict_folder(
            args.run,
            args.features,
            out=args.out,
            labels=args.labels,
            covariates=args.covariates,
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
                "without_features": list(predicted.without_features),
                "notes": predicted.notes,
            }
        )
    else:
        table = predicted.folder / "predictions.csv"
        OUT.print(f"{counted(predicted.bags, 'bag')} predicted: {table}", markup=False)
    for remark in _remarks(predicted):
        ERR.print(remark, markup=False, soft_wrap=True)
    return exit_status(predicted.failures, as_json=args.json)


def _remarks(predicted: "Predicted") -> Iterator[str]:
    """Yield what there is to say besides the bags that failed."""
    from ...core import counted

    for column, count in predicted.new_missing.items():
        yield (
            f"the covariate {column!r} is missing for {counted(count, 'bag')}, and was never "
            "missing in training: the average is used"
        )
    if predicted.other:
        yield (
            f"{counted(len(predicted.other), 'bag')} with other features than every training bag, "
            f"predicted anyway (--other-features): {_first(b for b, _ in predicted.other)}"
        )
    if predicted.without_features:
        yield (
            f"{counted(len(predicted.without_features), 'labelled bag')} without features in this "
            f"folder: {_first(predicted.without_features)}"
        )
    if predicted.notes:
        yield f"{counted(predicted.notes, 'bag')} with remarks: {predicted.folder / 'notes.json'}"


def _first(bags: Iterable[str]) -> str:
    first, *others = bags
    return f"{first!r}{', …' if others else ''}"
