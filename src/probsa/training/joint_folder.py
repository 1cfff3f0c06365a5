"""What a pass leaves: its state while it runs, and at its end a run folder for every head."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..errors import CheckpointError
from .checkpoints import load_checkpoint, optimizer_tensors, restore_optimizer, save_checkpoint
from .model_stack import Stack
from .progress import Progress, Saved, save_run

if TYPE_CHECKING:
    from .joint import Head, Pass


@dataclass(frozen=True, slots=True)
class PassFolder:
    """The state of a pass, in a folder of its own."""

    path: Path

    @property
    def file(self) -> Path:
        """Everything that lets the pass go on, in one checkpoint."""
        return self.path / "pass.safetensors"

    def save(self, of: "Pass") -> None:
        """Weights, optimiser, and each head's best weights and history."""
        tensors: dict[str, Tensor] = {}
        for k, stack in enumerate(of.stacks):
            state = stack.model.state_dict()
            tensors |= {f"stack{k}.{name}": v for name, v in state.items()}
        for k, head in enumerate(of.heads):
            tensors |= {f"best{k}.{name}": v for name, v in (head.best or {}).items()}
        state, groups = optimizer_tensors(of.optimizer)
        metadata = {
            "members": members(of),
            "epoch": of.epoch,
            "step": of.step,
            "groups": groups,
            "heads": [{"progress": vars(h.progress), "error": h.error} for h in of.heads],
        }
        self.path.mkdir(parents=True, exist_ok=True)
        save_checkpoint(self.file, {**tensors, **state}, metadata=metadata)

    def restore(self, of: "Pass") -> None:
        """Puts a pass of the same runs back where it was; does nothing for another one's state."""
        try:
            kept = load_checkpoint(self.file)
        except CheckpointError:
            return  # none, or damaged: the pass starts at its beginning
        if kept.metadata.get("members") != members(of):
            return
        for k, stack in enumerate(of.stacks):
            stack.model.load_state_dict(kept.part(f"stack{k}"))
        for k, (head, metadata) in enumerate(zip(of.heads, kept.metadata["heads"], strict=True)):
            head.best = kept.part(f"best{k}") or None
            head.progress, head.error = Progress(**metadata["progress"]), metadata["error"]
        restore_optimizer(of.optimizer, kept)
        of.epoch, of.step = kept.metadata["epoch"], kept.metadata["step"]


def members(of: "Pass") -> list[Any]:
    """Which runs a pass trains, as JSON would give them back."""
    runs = [[str(h.folder.path), h.config.to_dict()] for h in of.heads]
    return json.loads(json.dumps(runs))


def fill_run(of: "Pass", head: "Head", stack: Stack, *, place: int, before: int) -> None:
    """Writes a head's run folder as a run alone leaves it.

    place: of the head in its stack. before: how many of the optimiser's parameters are of the
    stacks before this one.
    """
    state, groups = optimizer_tensors(of.optimizer)
    count = len(list(stack.parameters()))
    own: dict[str, Tensor] = {}
    for key, value in state.items():
        _, index, name = key.split(".", 2)
        if before <= int(index) < before + count:
            # a number that all heads share, like Adam's step, has no row a head
            own[f"optimizer.{int(index) - before}.{name}"] = value[place] if value.ndim else value
    groups = [{**groups[0], "params": list(range(count))}]
    saved = {
        "model": head.model.name,
        "arguments": head.model.arguments,
        "classes": of.prepared.classes,
        "standardize": of.standardizer.state_dict(),
    }
    assert head.best is not None
    best, last = Saved(**saved, weights=head.best), Saved(**saved, weights=stack.state_of(place))
    save_run(head.folder, best, last, head.progress, optimizer=own, groups=groups)
