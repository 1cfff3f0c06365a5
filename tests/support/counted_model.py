"""A model with running statistics in buffers."""

import torch

from probsa.models import register
from probsa.models.abmil import ABMIL


class Counted(ABMIL):
    """Keeps a running mean of the instances' mean logit, and the number of bags it has seen."""

    def __init__(self, *, in_dim, n_classes=1, embed=8, attention_dim=4, seed=0):
        super().__init__(
            in_dim=in_dim, n_classes=n_classes, embed=embed, attention_dim=attention_dim
        )
        self.seed = seed
        self.register_buffer("log_kappa", torch.tensor(0.0))
        self.register_buffer("bags", torch.tensor(0.0))

    def batch_statistics(self, out, bags, *, models=1):
        assert not torch.is_grad_enabled()
        count = torch.full((models,), len(bags) // models, dtype=torch.float64)
        mean = out.logits.double().reshape(models, -1).sum(1)
        return torch.stack([count, mean], 1)

    def update_statistics(self, total):
        count, mean = total.unbind(1)
        shape = self.log_kappa.shape
        self.log_kappa.lerp_((mean / count).float().reshape(shape), 0.5)
        self.bags += count.reshape(shape)


def register_counted() -> str:
    """Register the model, and return its name."""
    register("counted-test")(Counted)
    return "counted-test"
