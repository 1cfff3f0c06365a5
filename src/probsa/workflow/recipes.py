"""How the training features of a run were made, so that new slides are treated in the same way."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ..cohorts import FeatureRecipe
from ..core import EncoderName, read_json
from ..datasets import FeatureMetadata
from ..errors import InputError
from ..evaluation import load
from ..features import describe
from ..patches import PatchSettings
from ..training import RunFolder

T = TypeVar("T")
ADVICE = "copy the run again, or remove the file and give --encoder, --patch-size and --mpp"


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedRecipe:
    """What the user states of the features of a run that does not say how they were made."""

    encoder: str | None = None
    patch_size: int | None = None
    mpp: float | None = None
    """Micrometres per pixel of the patches."""


def recipe_of_runs(runs: Sequence[Path | str], stated: StatedRecipe) -> tuple[FeatureRecipe, str]:
    """Return how the features of runs were made, and a remark if that is not known exactly.

    Raises:
        InputError: the runs differ, or nothing is known of how their features were made.
    """
    recipes: dict[Path, FeatureRecipe] = {}
    for run in map(Path, runs):
        RunFolder(run).config()
        file = RunFolder(run).recipe_file
        if file.is_file():
            recipes[run] = FeatureRecipe.from_dict(read_json(file, advice=ADVICE), where=str(file))
    if not recipes:
        return _from_metadata(Path(runs[0]), stated)
    first, recipe = next(iter(recipes.items()))
    given = [f for f in ("encoder", "patch_size", "mpp") if getattr(stated, f) is not None]
    if given:
        raise InputError(
            f"--{given[0].replace('_', '-')} is for runs that do not state how their features were "
            f"made, but {first} does: leave it out"
        )
    for run, other in recipes.items():
        if other != recipe:
            raise InputError(
                f"the features of {run} were made in another way than those of {first}: give runs "
                "that were trained on the same features"
            )
    return recipe, ""


def check_encoder(runs: Iterable[Path | str], encoder: str, *, any_name: bool) -> None:
    """Refuse another encoder than that of the training, before anything is cut and encoded.

    Args:
        runs: run folders.
        encoder: name of the encoder of the new features.
        any_name: whether only the number of features must be that of the training.

    Raises:
        InputError: its name or its number of features is not that of a run.
    """
    width = describe(encoder)["width"]
    for run in runs:
        trained = FeatureMetadata.read(RunFolder(Path(run)).features_file) or FeatureMetadata()
        names = {EncoderName.parse(name).name for name in trained.encoders}
        expected_width = load(run, device="cpu").model.arguments.get("in_dim")
        has_other_name = bool(names) and encoder not in names and not any_name
        has_other_width = bool(width) and expected_width not in (None, width)
        if has_other_name or has_other_width:
            origin = f" of {' or '.join(sorted(names))}" if names else ""
            raise InputError(
                f"the encoder {encoder} gives {width or 'other'} features per instance, but {run} "
                f"was trained on {expected_width}{origin}: use the encoder of the training"
            )


def _from_metadata(run: Path, stated: StatedRecipe) -> tuple[FeatureRecipe, str]:
    """Return the recipe that the bags' metadata imply; what they do not say are defaults."""

    trained = FeatureMetadata.read(RunFolder(Path(run)).features_file) or FeatureMetadata()
    is_ct = trained.kinds == ("ct",)
    encoder = stated.encoder or _only(EncoderName.parse(name).name for name in trained.encoders)
    size = stated.patch_size or _only(trained.patch_sizes)
    mpp = stated.mpp or _only(trained.mpps)
    missing: list[str] = []
    if encoder is None:
        missing.append("--encoder")
    if size is None and not is_ct:
        missing.append("--patch-size")
    if mpp is None and not is_ct:
        missing.append("--mpp")
    if missing:
        raise InputError(
            f"{run} does not state how its features were made from slides or scans: add "
            f"{' and '.join(missing)}"
        )
    recipe = FeatureRecipe(kind="ct" if is_ct else "slide", encoder=str(encoder))
    if is_ct:
        return recipe, f"{run} does not state its CT windows: the defaults are used"
    patches = PatchSettings(size=round(float(size or 0)), mpp=mpp)
    remark = f"{run} does not state how its tissue was found: the default settings are used"
    return replace(recipe, patches=patches), remark


def _only(values: Iterable[T]) -> T | None:
    """Return the only different value; None if there are several or none."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None
