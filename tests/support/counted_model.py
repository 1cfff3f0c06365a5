"""A model with running statistics in buffers."""

import torch

from probsa.models import register
from probsa.models.attention_mil import ABMIL


class Counted(ABMIL):
    """Keeps a running mean of the instances' mean logit, and the number of bags it has seen."""

    def __init__(self, *, in_dim, n_classes=1, embed=8, attention_dim=4, seed=0):
        super().__init__(
            in_dim=in_dim, n_classes=n_classes, embed=embed, attention_dim=attention_dim
        )
        self.seed = seed
        self.register_buffer("log_kappa", torch.tensor(0.0))
        self.register_buffer("bags", torch.tensor(0.0))

    def batch_statistics(self, out, bags):
        assert not torch.is_grad_enabled()
        return torch.stack([torch.tensor(float(len(bags))).double(), out.logits.double().sum()])

    def update_statistics(self, total):
        count, total_logit = total
        self.log_kappa.lerp_((total_logit / count).float(), 0.5)
        self.bags += count


def register_counted() -> str:
    """Register the model, and return its name."""
    register("counted-test")(Counted)
    return "counted-test"
