"""The parts of an experiment: a method is a row of its tables, a cell is one of its runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...models import arguments, names
from ...training import RunConfig
from ...variational import KLWeight

Family = Literal["local", "global"]

GLOBAL = ("tabmil", "transmil", "setmil", "gtp", "iibmil", "camil", "vmil")
"""Methods whose instances see the whole bag: the paper's second family (table 3)."""
PLAIN = "-probsa-"
"""What divides a model's name from the posterior that is laid on it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A row of a table: a model, its arguments and, if it has a KL, λ."""

    label: str
    """The model's registered name, or the label that the grid gives it."""
    model: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    kl_weight: KLWeight | None = None
    """λ; None if the model has no KL."""

    @property
    def name(self) -> str:
        """Return the name in tables: `abmil-probsa-diag λ=0.1`."""
        return self.label if self.kl_weight is None else f"{self.label} λ={_short(self.kl_weight)}"

    @property
    def slug(self) -> str:
        """Return the name as a folder: `abmil-probsa-diag_kl-0.1`."""
        kl = "" if self.kl_weight is None else f"_kl-{_short(self.kl_weight)}"
        return re.sub(r"[^\w.-]+", "-", self.label) + kl

    @property
    def family(self) -> Family:
        """Return `global` for interactions over the whole bag, else `local`."""
        return "global" if self.model.startswith(GLOBAL) else "local"

    @property
    def baseline(self) -> str | None:
        """Return the model that λ = 0 stands for (`abmil` of `abmil-probsa-diag`), or None."""
        return plain(self.model)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One run: a data set, a method, a split and a seed."""

    data: str
    method: Method
    split: int
    """The fold that tests, or the number of the split of the training part."""
    seed: int
    config: RunConfig

    @property
    def name(self) -> str:
        """Return the cell's unique path below `cells`."""
        return f"{self.data}/{self.method.slug}/split{self.split}-seed{self.seed}"

    def folder(self, out: Path) -> Path:
        """Return the cell's run folder in the experiment's folder."""
        return out / "cells" / self.name


def plain(model: str) -> str | None:
    """The registered model that a ProbSA model is built on, or None."""
    base, found, _ = model.partition(PLAIN)
    return base if found and base in names() else None


def has_kl(model: str) -> bool:
    """Whether λ means anything to a model."""
    return "kappa" in arguments(model)


def _short(kl_weight: KLWeight) -> str:
    return f"{kl_weight:g}" if isinstance(kl_weight, int | float) else kl_weight
