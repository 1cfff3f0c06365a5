"""Predict a folder of bags with a trained run, or with several."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..core import check_apart, optional_path, read_json, read_record
from ..datasets import (
    BagSet,
    LabelTable,
    PatientBags,
    Split,
    check_labels_match,
    match_bags,
    most_frequent,
    open_bags,
    patient_table,
    read_table,
    write_notes,
)
from ..errors import InputError
from ..evaluation import (
    METADATA,
    NOTES,
    MapScoreChoice,
    MapTest,
    PredictionsMetadata,
    Predictor,
    Reservation,
    StoredRule,
    at_chance,
    choose_on_validation,
    distances_of,
    load,
    load_several,
    map_trust,
    null_maps_of,
    read_predictions,
    write_null_scores,
)
from ..tasks import TASKS, TargetOptions
from ..training import (
    RunFolder,
    attach_covariates,
    known_names,
    need_table,
    note_missing_features,
    open_data,
    read_split,
    slides_to_extract,
    targets_of,
)
from .mean_features import FILE as MEANS_FILE
from .mean_features import MeanFeatures
from .writing import BagSelection, OnBag, Predicted


def predict_folder(  # noqa: PLR0913 - the options are independent
    run: Path | str | Sequence[Path | str],
    features: Path | str,
    *,
    out: Path | str,
    labels: Path | str | None = None,
    covariates: Path | str | None = None,
    checkpoint: str = "best",
    device: str = "auto",
    other_features: bool = False,
    faithfulness: bool = False,
    threshold: str | None = None,
    overwrite: bool = False,
    on_bag: OnBag | None = None,
) -> Predicted:
    """Predict every bag of a folder with a trained run, or with several.

    Several runs predict like the members of one, but each bag only by those that were neither
    trained nor validated on it. Bags that no run may predict, that training would refuse, or that
    cannot be read, are left out and listed with the reason in `failed.csv`; remarks on the others
    are in `notes.json`. The table of predictions states which part of the run's split each bag
    belongs to, so that an evaluation can exclude training bags.

    Args:
        run: the run folder, or several of them.
        features: folder with the features of the bags.
        out: folder to write the predictions to.
        labels: table of labels that the table of predictions includes.
        covariates: table of the run's clinical covariates; None for that of the run.
        checkpoint: `best` or `last` epoch of the run.
        device: device to predict on; `auto` chooses one.
        other_features: also predict bags whose encoder, kind, resolution or patch size no training
            bag has; otherwise they are left out.
        faithfulness: also store each bag's `evaluation.deletion_curves`.
        threshold: a rule that chooses the threshold of positive calls on the validation bags whose
            predictions the run has stored, such as `sensitivity=0.95`; None for the run's own.
        overwrite: replace existing predictions.
        on_bag: called after every bag.

    Raises:
        OutputExists: `out` exists and `overwrite` is not set, or it contains something else.
        InputError: `run` is not a run folder, or the runs cannot be combined.
        TableError: a table cannot be used, or names none of the bags, or a class is unknown.
        BagError: none of the bags can be predicted, as they lack what the model needs.
    """
    runs = (Path(run),) if isinstance(run, str | Path) else tuple(map(Path, run))
    first = runs[0]
    several = len(runs) > 1
    out = Path(out)
    check_apart(out, Path(features), *runs, *(RunFolder(run).predictions for run in runs))
    if several:
        predictor = load_several(runs, checkpoint=checkpoint, device=device)
    else:
        predictor = load(first, checkpoint=checkpoint, device=device)
    shown = RunFolder(first).map_score_file
    if not several and shown.is_file():
        advice = "remove it to show the model's own score, or copy the run again"
        choice = read_record(MapScoreChoice, shown, advice=advice)
        predictor.metadata = replace(predictor.metadata, map_score=choice)
    predictor.metadata = _with_evaluation(predictor.metadata, runs)
    if threshold is not None:
        _choose_threshold(predictor, runs, rule=threshold)
    bags, table = _units(predictor, Path(features), optional_path(labels))
    new_missing = _covariates(predictor, bags, table, optional_path(covariates))
    null_maps = null_maps_of(runs)  # a damaged file is refused before anything is written
    rival = None
    rival_file = first / MEANS_FILE
    if not several and rival_file.is_file():
        rival = MeanFeatures.load(rival_file, likelihood=predictor.model.likelihood)
    folders = [RunFolder(run) for run in runs]
    splits = [read_split(folder) for folder in folders if folder.split_file.is_file()]
    split = splits[0] if splits else None
    if several and splits:  # whichever bag they predict is a test bag or a new one for each
        test_bags = dict.fromkeys(name for split in splits for name in split.test)
        origin = f"the test parts of {len(runs)} runs"
        split = Split(train=(), val=(), test=tuple(test_bags), origin=origin)

    def more(new: Path) -> None:
        if null_maps is not None:
            write_null_scores(new, null_maps, read=bags.stored)
        if bags.notes:
            write_notes(new / NOTES, bags.notes)

    selection = BagSelection(
        bags=bags,
        names=bags.names,
        out=out,
        labels={} if table is None else targets_of(table),
        groups={} if table is None else table.group_of,
        split=split,
        threshold=predictor.threshold,
        compared=True,
        strict=not other_features,
        distance=distances_of(runs),
        rival=rival,
        faithfulness=faithfulness,
        overwrite=overwrite,
        on_bag=on_bag,
        more=more,
    )
    predicted = selection.predict(predictor)
    without = slides_to_extract(bags)
    if table is not None:
        note_missing_features(table, bags)
        absent = (name for name in table.bags if name not in set(bags.names))
        without = tuple(dict.fromkeys([*absent, *without]))
    return replace(
        predicted,
        without_features=without,
        notes=len(bags.notes),
        new_missing=new_missing,
        most_noted=most_frequent(bags.notes.values()),
    )


def _choose_threshold(predictor: Predictor, runs: Sequence[Path], *, rule: str) -> None:
    """Choose a predictor's threshold on the validation bags that its run has predicted."""
    stored = RunFolder(runs[0]).predictions
    if len(runs) > 1 or not stored.is_dir():
        raise InputError(
            f"the threshold {rule!r} is chosen on the validation bags of one run, whose "
            "predictions it has stored: give one run folder, whose training has finished"
        )
    predictions = read_predictions(stored)
    labels = zip(predictions.bags, predictions.labels, strict=True)
    positive = {bag: label > 0 for bag, label in labels if label is not None}
    chosen = choose_on_validation(predictions, positive, rule=rule)
    predictor.threshold = chosen.value
    predictor.metadata = replace(predictor.metadata, threshold_rule=StoredRule.of(chosen))


def _with_evaluation(metadata: PredictionsMetadata, runs: Sequence[Path]) -> PredictionsMetadata:
    """Add what a run's evaluation says against it; of several runs, only that on chance."""
    stored: list[PredictionsMetadata] = []
    for run in runs:
        file = RunFolder(run).predictions / METADATA
        advice = "train the run again, or remove this file"
        entries = read_json(file, advice=advice) if file.is_file() else {}
        stored.append(PredictionsMetadata.of(entries, where=str(file)))
    if len(runs) == 1:
        return replace(
            metadata,
            reservations=stored[0].reservations,
            map_trust=stored[0].map_trust,
            training_bags=stored[0].training_bags,
            threshold_rule=stored[0].threshold_rule,
        )
    chance = [at_chance(each.reservations) for each in stored]
    if not all(chance):
        return metadata
    text = f"{chance[0]} (the first of {len(runs)} such runs)"
    return replace(
        metadata,
        reservations=(Reservation(kind="chance", text=text),),
        map_trust=map_trust({MapTest.CHANCE: False}).stored,
    )


def _units(
    predictor: Predictor, features: Path, labels: Path | None
) -> tuple[BagSet, LabelTable | None]:
    """Return the bags in the unit of the run, which are slides or patients, and their table."""
    config = predictor.config
    if config is None:  # a predictor without a run does not state how its bags were read
        bags = open_bags(features)
        target = TargetOptions()
        columns = ()
    else:
        bags = open_data(config.data, features=features)
        target = config.data.targets
        columns = config.data.covariates.columns
    bags.model_width = predictor.model.arguments.get("in_dim")
    table = None
    if labels is not None:
        classes = predictor.classes if TASKS[predictor.task].has_classes else None
        table = read_table(
            labels, classes=classes, labels_required=False, target=target, covariates=columns
        )
        table = match_bags(table, known_names(bags))
        if not set(table.bags) & set(bags.names):
            check_labels_match(table, bags.names, allow_unlabelled=True)
    if config is not None:
        need_table(config.data, labels)
        if target.unit == "patient" and table is not None:
            return PatientBags(bags, table, missing="leave_out"), patient_table(table)
    return bags, table


def _covariates(
    predictor: Predictor, bags: BagSet, table: LabelTable | None, path: Path | None
) -> dict[str, int]:
    """Give the bags their covariates; return how often some are missing as in no training bag."""
    if predictor.config is None or not predictor.config.data.covariates.columns:
        if path is not None:
            raise InputError("covariates are given, but the model was trained on images alone")
        return {}
    if predictor.run is None:
        raise InputError(
            "runs with covariates are predicted one by one, as each has its own encoder: give one"
        )
    return attach_covariates(predictor.run, bags, names=bags.names, table=table, path=path)
