"""Words for kinds of models and scores, which are needed where PyTorch is not."""

from typing import Literal

ScoreKind = Literal["logit", "probability", "weight", "relevance", "evidence"]
"""What the score of an instance is."""
Family = Literal["local", "global"]
"""The ProbSA paper's two families: whether instances interact over the whole bag (`global`)."""
