"""Every figure that an experiment's run folders allow, and why there is none of the others."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ..grid.methods_and_cells import Family
from ..grid.variants import chosen, chosen_note
from ..results.cache import Kept
from ..results.results import Scores, read_scores
from .attention import attention_figures
from .critical import write_critical
from .detectors import detections
from .folds import write_folds
from .forest import write_forest
from .improvement import write_improvement
from .made import Made
from .numbers import TITLES, critical, differences, family_ranks, folds, gains, odd, paper_gains
from .ranks import FAMILIES, write_ranks
from .uncertainty import write_uncertainty

Row = TypeVar("Row")


def write_figures(
    out: Path,
    *,
    bags: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seed: int = 0,
    kept: Kept | None = None,
) -> Made:
    """Writes `out`/figures/*.png, each with its numbers as CSV.

    Args:
        out: the experiment's folder.
        bags: whose attention maps are drawn side by side; None: chosen by rule.
        methods: of those maps; None: chosen by rule.
        seed: of the runs that those maps are of.
        kept: what tables of the same runs have computed.

    Raises:
        InputError: no finished run below `out`.
        UnknownName: a bag or a method that the experiment has not.
    """
    scores = read_scores(out)
    kept = kept or Kept()
    rule = chosen_note(scores)
    folder = out / "figures"

    def path(name: str) -> Path:
        return folder / f"{name}.png"

    ours, lost = gains(scores, kept=kept)
    made = _one(
        path("improvement"), ours, lost, lambda p, r: write_improvement(p, [*r, *paper_gains()]),
        none="no ProbSA method with λ > 0 beside its baseline (λ = 0)",
    )  # fmt: skip
    ranks, lost_ranks = family_ranks(scores)
    many = len(chosen(scores)) > 1
    made += _one(
        path("ranks"), ranks if many else [], lost_ranks,
        lambda p, r: write_ranks(p, r, said=" ".join([rule, *lost_ranks]).strip()),
        none="one method has no rank",
    )  # fmt: skip
    found, lost = differences(scores, kept=kept)
    made += _one(
        path("differences"), found, lost, lambda p, r: write_forest(p, r, said=rule),
        none="no method beside a baseline",
    )  # fmt: skip
    splits = [s for s in folds(scores) if s.auroc]
    made += _one(
        path("splits"), splits, [], lambda p, r: write_folds(p, r, odd=odd(scores)),
        none="no split has test bags of both classes",
    )  # fmt: skip
    made += _critical(folder, scores)
    detected, lost = detections(chosen(scores), kept=kept)
    made += _one(
        path("uncertainty"), detected, lost, write_uncertainty,
        none="no method with a variance on bags with instance labels",
    )  # fmt: skip
    return made + attention_figures(out, bags=bags, methods=methods, seed=seed)


def _critical(folder: Path, scores: Sequence[Scores]) -> Made:
    """The critical-difference diagrams, where there are data sets enough for them."""
    made = Made()
    families: dict[Family, None] = dict.fromkeys(s.method.family for s in scores)
    for family in families:
        for metric, title in TITLES.items():
            name = f"critical-{family}-{metric}"
            found = critical(scores, family, metric)
            if isinstance(found, str):
                made += Made(missing=((name, found),))
                continue
            models = {s.method.name: s.method.model for s in scores}
            methods = found.ranks.methods
            cliques = [[methods.index(m) for m in own] for own in found.cliques]
            columns = found.ranks.ranks.shape[1]
            written = write_critical(
                folder / f"{name}.png",
                methods,
                list(found.ranks.mean.values()),
                cd=found.difference,
                cliques=cliques,
                models=[models[m] for m in methods],
                title=f"{title} on {columns} data sets, {FAMILIES[family]}",
            )
            made += Made(written=tuple(written))
    return made


def _one(
    path: Path,
    rows: Sequence[Row],
    lost: Sequence[str],
    write: Callable[[Path, Sequence[Row]], list[Path]],
    *,
    none: str,
) -> Made:
    """A figure, and what it had to leave out; or why there is none."""
    name = path.stem
    if not rows:
        return Made(missing=((name, "; ".join([none, *lost])),))
    return Made(written=tuple(write(path, rows)), missing=tuple((name, why) for why in lost))
