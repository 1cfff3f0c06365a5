"""The parts of an experiment: a method is a row of its tables, a cell is one of its runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...models import Family
from ...training import RunConfig
from ...variational import KLWeight


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A row of a table: a model, its arguments and, if it has a KL term, λ."""

    label: str
    """The model's registered name, or the label that the grid gives."""
    model: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    kl_weight: KLWeight | None = None
    """λ; None if the model has no KL term."""

    @property
    def kl_label(self) -> str:
        """λ as names contain it, such as `0.1` or `cyclical`; empty if there is none."""
        if self.kl_weight is None:
            return ""
        return self.kl_weight if isinstance(self.kl_weight, str) else f"{self.kl_weight:g}"

    @property
    def name(self) -> str:
        """The name in tables, such as `abmil-probsa-diag λ=0.1`."""
        return self.label if self.kl_weight is None else f"{self.label} λ={self.kl_label}"

    @property
    def slug(self) -> str:
        """The name of a folder, such as `abmil-probsa-diag_kl-0.1`."""
        label = re.sub(r"[^\w.-]+", "-", self.label)
        return label if self.kl_weight is None else f"{label}_kl-{self.kl_label}"

    @property
    def family(self) -> Family:
        """The model's family; `local` if the model is not registered, as in a stored result."""
        from ...models import look_up, names

        return look_up(self.model).family if self.model in names() else "local"

    @property
    def baseline(self) -> str | None:
        """The model that λ = 0 stands for: `abmil` for `abmil-probsa-diag`, None for `abmil`."""
        from ...models import look_up, names

        return look_up(self.model).baseline if self.model in names() else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One run: a data set, a method, a split and a seed."""

    data: str
    method: Method
    split: int
    """The test fold, or the number of the split of the training part."""
    seed: int
    config: RunConfig

    @property
    def name(self) -> str:
        """A path below `cells`, unique in the grid."""
        return f"{self.data}/{self.method.slug}/split{self.split}-seed{self.seed}"

    def folder(self, out: Path) -> Path:
        """Return the cell's run folder in the experiment's folder."""
        return out / "cells" / self.name
