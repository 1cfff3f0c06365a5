"""probsa predict."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from ..command import Answer, Flag, write
from ..flags import Csv, Device, Dir, InputDir, LabelsToInclude, ThresholdRule


def run(
    run: Annotated[list[Path], Flag("RUN", holds="any")],
    *,
    features: InputDir,
    out: Dir,
    labels: LabelsToInclude | None = None,
    covariates: Csv | None = None,
    checkpoint: Literal["best", "last"] = "best",
    device: Device = "auto",
    other_features: bool = False,
    faithfulness: bool = False,
    threshold: ThresholdRule | None = None,
    overwrite: bool = False,
) -> Answer:
    """Predict every bag of a folder of features with a trained run, or with several.

    Args:
        run: Run folder. Several, such as those of a cross-validation, are combined: each bag is
            predicted by the runs that were neither trained nor validated on it.
        features: Folder of feature files.
        out: Folder for the predictions.
        covariates: Table of the clinical covariates that the run was trained with, for other
            patients. Default: that of the run.
        checkpoint: Weights that the run's `select` chose (in the default recipe, a running average
            where the validation NLL is lowest; with --model, those of the epoch with the best
            validation AUROC), or those of the last epoch.
        other_features: Also predict bags with an encoder, kind, resolution or patch size that no
            training bag had.
        faithfulness: Also remove the instances of each bag, most and least relevant first, and
            store how the prediction changes; probsa evaluate then summarises it. Without a closed
            form, the model predicts each bag more than 100 times.
        overwrite: Replace existing predictions.
    """
    from ...core import TextTable, counted
    from ...evaluation import check_predictions_output, check_truth
    from ...training import check_features_of, check_trained

    for folder in run:
        check_trained(folder, checkpoint=checkpoint)
    check_features_of(run[0], features)
    check_truth(run[0], labels)
    if covariates is not None:
        TextTable.read(covariates)
    check_predictions_output(out, overwrite=overwrite)
    from ...workflow import predict_folder
    from ..terminal import Counter

    with Counter("predicting") as count:
        predicted = predict_folder(
            run,
            features,
            out=out,
            labels=labels,
            covariates=covariates,
            checkpoint=checkpoint,
            device=device,
            other_features=other_features,
            faithfulness=faithfulness,
            threshold=threshold,
            overwrite=overwrite,
            on_bag=count,
        )
    folder = predicted.folder
    missing = predicted.without_features
    other = predicted.other
    remarks = [
        f"the covariate {column!r} is missing for {counted(number, 'bag')}, and was never missing "
        "in training: the average is used"
        for column, number in predicted.new_missing.items()
    ]
    if predicted.chance:
        remarks.append(f"warning: {predicted.chance}")
    if other:
        remarks.append(
            f"{counted(len(other), 'bag')} with other features than every training bag, predicted "
            f"anyway (--other-features): {_first([bag for bag, _ in other])}"
        )
    if missing:
        remarks.append(
            f"warning: {counted(len(missing), 'bag')} without features in this folder: "
            f"{_first(missing)}. If they are slides that were patched, probsa extract continues"
        )
    if predicted.notes:
        remarks.append(
            f"{counted(predicted.notes, 'bag')} with remarks, most often: {predicted.most_noted}; "
            f"see {folder / 'notes.json'}"
        )
    for remark in remarks:
        write(remark, error=True)
    document = {
        "predictions": str(folder),
        "bags": predicted.bags,
        "failed": [{"bag": b, "reason": r} for b, r in predicted.failures],
        "other_features": [{"bag": b, "difference": d} for b, d in other],
        "without_features": list(missing),
        "notes": predicted.notes,
        "chance": predicted.chance,
    }
    text = f"{counted(predicted.bags, 'bag')} predicted: {folder / 'predictions.csv'}"
    return Answer(document, text, predicted.failures)


def _first(bags: Sequence[str]) -> str:
    return f"{bags[0]!r}{', …' if len(bags) > 1 else ''}"
