"""Load several runs, such as those of a cross-validation, as one predictor."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..tasks import task_of
from ..training import RunFolder, read_split
from .predictor import Ensemble, Predictor, load
from .temperature import mean_temperature


def load_several(
    folders: Sequence[Path], *, checkpoint: str = "best", device: str = "auto"
) -> Ensemble:
    """Load runs as one ensemble, in which no bag is predicted by a run that has seen it.

    A run has seen the bags of its training and validation parts. Bags that its split does not list
    are new to it. The temperature of the ensemble is the geometric mean of those of the runs.

    Args:
        folders: run folders, or files of converted models.
        checkpoint: `best` or `last`, as for `load`.
        device: auto, cpu, cuda or mps.

    Raises:
        InputError: the runs differ in classes, features, graph or the kind of their scores, or a
            run is given twice.
    """
    resolved = [Path(folder).resolve() for folder in folders]
    twice = next((f for k, f in enumerate(resolved) if f in resolved[:k]), None)
    if twice is not None:
        raise InputError(f"the run {twice} is given twice")
    for folder in resolved:
        whole = next((f for f in resolved if f != folder and f in folder.parents), None)
        if whole is not None:
            raise InputError(
                f"{folder} is a member of the run {whole}, which is also given: give one of them"
            )
    runs = [load(folder, checkpoint=checkpoint, device=device) for folder in folders]
    for folder, run in zip(folders[1:], runs[1:], strict=True):
        _check_alike(folders[0], runs[0], folder, run)
    if not task_of(runs[0].task).runs_average:
        raise InputError(
            f"runs of the task {runs[0].task} cannot be combined: quantiles, and survival at times "
            "that each run chose on its own training bags, have no common mean. Predict with each"
        )
    members: list[Predictor] = []
    seen: list[frozenset[str]] = []
    for folder, run in zip(folders, runs, strict=True):
        of_run = run.members if isinstance(run, Ensemble) else (run,)
        members += of_run
        seen += [seen_bags(folder)] * len(of_run)
    metadata = {"runs": [str(f) for f in folders], "members": len(members)}
    shared = ("target", "unit", "covariates", "prior")
    metadata |= {k: runs[0].metadata[k] for k in shared if k in runs[0].metadata}
    config = next((run.config for run in runs if run.config is not None), None)
    ensemble = Ensemble(members, seen=seen, config=config, metadata=metadata)
    ensemble.temperature = mean_temperature([run.temperature for run in runs])
    if ensemble.temperature != 1:
        metadata["temperature"] = ensemble.temperature
    return ensemble


def seen_bags(folder: Path) -> frozenset[str]:
    """Return the bags that a run was trained or validated on; none for a converted model."""
    run = RunFolder(Path(folder))
    if not run.split_file.is_file():
        return frozenset()
    split = read_split(run)
    return frozenset((*split.train, *split.val))


def _check_alike(first_folder: Path, first: Predictor, folder: Path, other: Predictor) -> None:
    one, two = _traits(first), _traits(other)
    for trait, value in one.items():
        if trait in two and two[trait] != value:
            raise InputError(
                f"{first_folder} and {folder} cannot be combined: their {trait} differ "
                f"({value} and {two[trait]})"
            )


def _traits(run: Predictor) -> dict[str, Any]:
    """Return what runs must have in common, by the name that a message gives it."""
    model = run.model
    traits: dict[str, Any] = {
        "tasks": run.task,
        "classes": ", ".join(run.classes),
        "numbers of features per instance": model.arguments.get("in_dim"),
        "numbers of outputs": model.n_classes,
        "kinds of instance scores": model.score_kind,
    }
    if run.config is not None:
        data = run.config.data
        traits |= {"graphs": data.graph, "feature sets": data.feature_set}
        traits |= {"targets": data.targets, "covariates": data.covariates}
    return traits
