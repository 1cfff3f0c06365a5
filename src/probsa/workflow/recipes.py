"""How the training features of a run were made, so that new slides are treated in the same way."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ..cohorts import FeatureRecipe
from ..core import read_json
from ..datasets import FeatureMetadata
from ..errors import InputError
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

    def refuse(self, run: Path) -> None:
        """Refuse statements about a run that says itself how its features were made."""
        given = [f for f in ("encoder", "patch_size", "mpp") if getattr(self, f) is not None]
        if given:
            raise InputError(
                f"--{given[0].replace('_', '-')} is for runs that do not state how their features "
                f"were made, but {run} does: leave it out"
            )


def recipe_of_runs(runs: Sequence[Path], stated: StatedRecipe) -> tuple[FeatureRecipe, str]:
    """Return how the features of runs were made, and a remark if that is not known exactly.

    Raises:
        InputError: the runs differ, or nothing is known of how their features were made.
    """
    for run in runs:
        if not run.is_file():  # the file of a converted model
            RunFolder(run).config()
    stored = [(run, _stored(RunFolder(run))) for run in runs]
    recipes = [(run, r) for run, r in stored if r is not None]
    if recipes:
        first, recipe = recipes[0]
        stated.refuse(first)
        for run, other in recipes[1:]:
            if other != recipe:
                raise InputError(
                    f"the features of {run} were made in another way than those of {first}: give "
                    "runs that were trained on the same features"
                )
        return recipe, ""
    return _from_metadata(runs[0], stated)


def _stored(run: RunFolder) -> FeatureRecipe | None:
    file = run.recipe_file
    if not file.is_file():
        return None
    return FeatureRecipe.from_dict(read_json(file, advice=ADVICE), where=str(file))


def _from_metadata(run: Path, stated: StatedRecipe) -> tuple[FeatureRecipe, str]:
    """Return the recipe that the bags' metadata imply; what they do not say are defaults."""
    known = FeatureMetadata.read(RunFolder(run).features_file) or FeatureMetadata()
    is_ct = known.kinds == ("ct",)
    encoder = stated.encoder or _only(tuple({e.partition("@")[0] for e in known.encoders}))
    size = stated.patch_size or _only(known.patch_sizes)
    mpp = stated.mpp or _only(known.mpps)
    wanted = {"--encoder": encoder} | ({} if is_ct else {"--patch-size": size, "--mpp": mpp})
    missing = [flag for flag, value in wanted.items() if value is None]
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


def _only(values: Sequence[T]) -> T | None:
    """Return the only value, None if there is another number of them."""
    return values[0] if len(values) == 1 else None
