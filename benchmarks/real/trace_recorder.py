"""What a traced run predicts after every epoch, with its weights and with averages of them.

`Averages` keeps the averages of a group's weights, and `Recorder` takes the place of the keeper of
a training loop and predicts the validation and test bags at the end of every epoch.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probsa.core import Bags
from probsa.layers import StackedLinear, without_bias
from probsa.models import Output
from probsa.training.devices import precision_context
from probsa.training.keepers import Keeper, TrainingState
from probsa.training.model_groups import ModelGroup, SingleModel
from probsa.training.model_stack import StackedModels

COLUMNS = ("mean", "variance", "g")
UNIT = ("._u", "._v")
"""Endings of the buffers of a spectral norm, which are unit vectors."""
LARGEST = 65504.0
"""The largest number in float16."""


class Averages:
    """Averages of a module's parameters and floating buffers, and a way to predict with them."""

    def __init__(self, module: nn.Module, *, decay: float) -> None:
        self.module, self.decay = module, decay
        self.ema = [t.clone() for _, t in self._tensors()]
        self._sum: list[Tensor] | None = None
        self._count = 0

    def _tensors(self) -> list[tuple[str, Tensor]]:
        parameters = [(k, p.detach()) for k, p in self.module.named_parameters()]
        buffers = [(k, b) for k, b in self.module.named_buffers() if b.is_floating_point()]
        return parameters + buffers

    @torch.no_grad()
    def after_step(self) -> None:
        """Move the exponential average by one step."""
        now = [t for _, t in self._tensors()]
        for k, t in enumerate(now):
            if t.shape != self.ema[k].shape:  # a memory that grows has no average
                self.ema[k] = t.clone()
        torch._foreach_lerp_(self.ema, now, 1 - self.decay)

    @torch.no_grad()
    def add_epoch(self) -> None:
        """Count the present weights in the plain average."""
        now = [t.double() for _, t in self._tensors()]
        self._sum = (
            now if self._sum is None else [a + b for a, b in zip(self._sum, now, strict=True)]
        )
        self._count += 1

    @property
    def average(self) -> list[Tensor]:
        """The plain average of the weights given to `add_epoch`."""
        assert self._sum is not None, "at least one epoch was added"
        return [a / self._count for a in self._sum]

    @contextmanager
    def swapped(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Let the module have other weights for a while."""
        named = self._tensors()
        own = [t.clone() for _, t in named]
        with torch.no_grad():
            for (name, t), value in zip(named, values, strict=True):
                is_unit = name.endswith(UNIT)
                t.copy_(nn.functional.normalize(value, dim=0) if is_unit else value)
        try:
            yield
        finally:
            with torch.no_grad():
                for (_, t), value in zip(named, own, strict=True):
                    t.copy_(value)


class InstanceVectors:
    """Catches the vectors that a model's attention pools, for the class scores g = uᵀh."""

    def __init__(self, model: nn.Module) -> None:
        self.classifier = getattr(model, "classifier", None)
        self.h: Tensor | None = None
        attention = getattr(model, "attention", None)
        if isinstance(attention, nn.Module) and isinstance(
            self.classifier, nn.Linear | StackedLinear
        ):
            attention.register_forward_hook(self._catch)

    def _catch(self, module: nn.Module, inputs: Any, output: Any) -> None:
        del module
        # smabmil returns its vectors, which it may have smoothed, and the scores
        h = output[0] if isinstance(output, tuple) else inputs[0]
        self.h = None if torch.is_grad_enabled() else h

    def scores(self, rows: int) -> Tensor | None:
        """Return the class score of each row of the last prediction; None if there are none."""
        h, self.h = self.h, None
        if h is None or len(h) != rows or h.shape[-1] != self.classifier.weight.shape[-1]:
            return None
        g = without_bias(self.classifier, h)
        return g[:, -1] if g.ndim == 2 else None


class Viewer:
    """Predicts bags with every run of a group."""

    def __init__(self, group: ModelGroup) -> None:
        self.group, self.seconds = group, 0.0
        is_stack = isinstance(group, StackedModels)
        self.model = group.stack.model if is_stack else group.model  # pyright: ignore
        self.vectors = InstanceVectors(self.model)

    @torch.no_grad()
    def predict(self, batches: Sequence[Bags], *, kept: np.ndarray) -> dict[str, np.ndarray]:
        """Return p(Y = 1) (runs, bags) and float16 columns (runs, rows) of the kept instances."""
        started = time.perf_counter()
        self.group.module.eval()
        parts = [self._outputs(bags) for bags in batches]
        keys = [k for k in parts[0] if all(k in part for part in parts)]
        whole = {k: torch.cat([p[k] for p in parts], 1).float().cpu().numpy() for k in keys}
        columns = {
            k: v[:, kept].clip(-LARGEST, LARGEST).astype(np.float16)
            for k, v in whole.items()
            if k != "p"
        }
        self.seconds += time.perf_counter() - started
        return {"p": whole["p"], **columns}

    def _outputs(self, bags: Bags) -> dict[str, Tensor]:
        group, runs = self.group, len(self.group.runs)
        precision = group.runs[0].config.training.precision
        with precision_context(precision, bags.x.device):
            if isinstance(group, StackedModels):
                out, _ = group.stack(bags)
                scores = out.attention
            else:
                assert isinstance(group, SingleModel)
                out: Output = group.model(bags)
                scores = group.model.instance_scores(bags, out)
            g = self.vectors.scores(runs * len(bags.x))
        columns = {"mean": scores.mean, "variance": scores.variance}
        if g is not None:
            columns["g"] = g
        rows = {k: (v[..., -1] if v.ndim == 2 else v).unflatten(0, (runs, -1)) for k, v in
                columns.items()}  # fmt: skip
        return {"p": out.probability[:, -1].unflatten(0, (runs, -1)), **rows}

    def log_kappas(self) -> list[float] | None:
        """Return log κ of every run, if the model learns one for all instances."""
        named = [*self.model.named_buffers(), *self.model.named_parameters()]
        runs = len(self.group.runs)
        for name, value in named:
            if name.rpartition(".")[2] == "log_kappa":
                values = value.detach().flatten().tolist()
                return (
                    values * runs if len(values) == 1 else values if len(values) == runs else None
                )
        return None


class Recorder(Keeper):
    """Records what every run predicts after each epoch; `traces` holds it by group and run."""

    def __init__(
        self,
        groups: Sequence[ModelGroup],
        batches: Sequence[Bags],
        *,
        kept: np.ndarray,
        every: int,
        epochs: int,
        decay: float = 0.99,
    ) -> None:
        self.batches, self.kept, self.every, self.epochs = batches, kept, every, epochs
        self.viewers = [Viewer(group) for group in groups]
        self.averages = [Averages(group.module, decay=decay) for group in groups]
        self.columns: list[dict[str, list[np.ndarray]]] = [{} for _ in groups]
        self.training_seconds = [0.0 for _ in groups]
        self.started = self.last = time.perf_counter()
        for k, group in enumerate(groups):
            self._listen(k, group)

    def _listen(self, k: int, group: ModelGroup) -> None:
        backward, after_step = group.backward, group.after_step

        def timed(*args: Any, **named: Any) -> dict[str, Tensor]:
            started = time.perf_counter()
            terms = backward(*args, **named)
            self.training_seconds[k] += time.perf_counter() - started
            return terms

        def followed() -> None:
            after_step()
            self.averages[k].after_step()

        group.backward, group.after_step = timed, followed  # pyright: ignore

    def end_epoch(self, state: TrainingState) -> None:
        for viewer, averages, columns in zip(
            self.viewers, self.averages, self.columns, strict=True
        ):
            self._note(columns, "raw", viewer, epoch=state.epoch)
            with averages.swapped(averages.ema):
                self._note(columns, "ema", viewer, epoch=state.epoch)
            if state.epoch > 3 * self.epochs / 4:
                averages.add_epoch()
            kappas = viewer.log_kappas()
            if kappas is not None:
                columns.setdefault("log_kappa", []).append(np.array(kappas, np.float32))
        now = time.perf_counter()
        print(f"    epoch {state.epoch}: {now - self.last:.1f} s", flush=True)
        self.last = now

    def finish(self, state: TrainingState) -> None:
        for viewer, averages, columns in zip(
            self.viewers, self.averages, self.columns, strict=True
        ):
            with averages.swapped(averages.average):
                self._note(columns, "average", viewer, epoch=state.epoch)

    def _note(
        self, columns: dict[str, list[np.ndarray]], weights: str, viewer: Viewer, *, epoch: int
    ) -> None:
        is_stored = weights == "average" or epoch in self.stored_epochs()
        for key, value in viewer.predict(self.batches, kept=self.kept).items():
            if key == "p" or is_stored:
                columns.setdefault(f"{weights}_{key}", []).append(value)

    def stored_epochs(self) -> list[int]:
        """Return the epochs (from 1) whose instances are stored; the last one is among them."""
        return [e for e in range(1, self.epochs + 1) if (self.epochs - e) % self.every == 0]

    def arrays(self, group: int, place: int) -> dict[str, np.ndarray]:
        """Return the arrays of one run; a variance that is 0 everywhere is left out."""
        arrays = {k: np.stack([v[place] for v in vs]) for k, vs in self.columns[group].items()}
        return {k: v for k, v in arrays.items() if not k.endswith("variance") or v.any()}

    def seconds(self, group: int) -> dict[str, float]:
        """Return the seconds of one run of a group: its share of the group's time."""
        runs = len(self.viewers[group].group.runs)
        return {
            "train": round(self.training_seconds[group] / runs, 2),
            "predict": round(self.viewers[group].seconds / runs, 2),
        }
