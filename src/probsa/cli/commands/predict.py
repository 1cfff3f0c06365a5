"""probsa predict: every bag of a folder with a trained run."""

from pathlib import Path

from ._shared import Parser, status, write_json


def run(arguments: list[str]) -> int:
    """probsa predict."""
    parser = Parser(prog="probsa predict", description="Predicts every bag of a folder.")
    parser.add_argument("run", type=Path, help="folder of a training run, or a converted model")
    parser.add_argument("--features", type=Path, required=True, help="folder of feature files")
    parser.add_argument("--out", type=Path, required=True, help="folder for the predictions")
    parser.add_argument("--labels", type=Path, help="table of labels, to stand in the predictions")
    parser.add_argument("--checkpoint", choices=("best", "last"), default="best")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto")
    parser.add_argument(
        "--other-features",
        action="store_true",
        help="predict bags of another encoder, kind, resolution or patch size too",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the predictions there")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from ...workflow import predict_folder
    from ..terminal import ERR, OUT, counting

    with counting("predicting") as count:
        done = predict_folder(
            a.run,
            a.features,
            out=a.out,
            labels=a.labels,
            checkpoint=a.checkpoint,
            device=a.device,
            other_features=a.other_features,
            overwrite=a.overwrite,
            on_bag=count,
        )
    failed = [{"bag": b, "reason": r} for b, r in done.failures]
    if a.json:
        other = [{"bag": b, "difference": d} for b, d in done.other]
        write_json(
            {
                "predictions": str(done.folder),
                "bags": done.bags,
                "failed": failed,
                "other_features": other,
            }
        )
    else:
        OUT.print(f"{done.bags} bags predicted: {done.folder / 'predictions.csv'}", markup=False)
    if done.other:
        first, _ = done.other[0]
        ERR.print(
            f"{len(done.other)} bags are like none of the training and were predicted as they are "
            f"(--other-features): {first!r}{', …' if done.other[1:] else ''}",
            markup=False,
        )
    return status(done.failures, as_json=a.json)
