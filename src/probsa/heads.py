"""Stage 8: many runs in one pass over the data, each equal to what it would be alone.

Runs that share bags, split and the order of batches, and differ in seed, λ or posterior, train side
by side: what they share is read, packed and multiplied once.
"""

from collections.abc import Sequence
from pathlib import Path

from .config import RunConfig
from .runs import RunFolder
from .training import Reporter


def why_alone(config: RunConfig) -> str | None:
    """Why a run cannot train beside others; None: it can."""
    raise NotImplementedError(config)


def pass_key(config: RunConfig) -> str:
    """Runs with one key may train in one pass."""
    raise NotImplementedError(config)


def train_together(
    configs: Sequence[RunConfig],
    outs: Sequence[Path],
    *,
    state: Path,
    reporter: Reporter | None = None,
) -> list[RunFolder]:
    """Trains runs of one `pass_key`; each folder is then what `train` alone would leave.

    Args:
        configs: the runs.
        outs: their run folders; finished ones are left as they are.
        state: a folder of the pass itself, for what lets it go on after an interruption; removed at
            the end.
        reporter: told of every epoch of the pass.
    """
    raise NotImplementedError((configs, outs, state, reporter))
