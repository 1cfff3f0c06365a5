"""One bag from the slides of a patient: the slides share a softmax, but no edge joins two."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ..errors import BagError
from .bags import Bag, Label


def join_bags(name: str, bags: Sequence[Bag], *, y: Label) -> Bag:
    """Return the instances of several slides as one bag, in the order of the slides' names.

    The graph is block-diagonal: rows of edges and arcs are shifted, and nothing joins two slides.
    Coordinates stay those of each slide, so two instances at one place may lie on different slides;
    `Bag.slide` tells them apart. Instances without a known label get -1. The stride is kept if all
    slides have the same one. One slide gives a bag with the slide's own values.

    Args:
        name: Name of the patient; it seeds the noise of the prediction.
        bags: The slides, each with a name of its own. Their labels are not used.
        y: Label of the patient; None if it is not known.

    Raises:
        BagError: there are no slides; two have the same name; one was joined from slides itself;
            or they differ in the number of features or coordinates, in their covariates, or in
            whether they have coordinates or arcs.
    """
    if not bags:
        raise BagError(f"patient {name!r} has no slides: give at least one bag")
    bags = sorted(bags, key=lambda bag: bag.name)
    names = tuple(bag.name for bag in bags)
    _check(name, bags)
    sizes = torch.tensor([len(bag) for bag in bags])
    starts = [0, *sizes.cumsum(0).tolist()]
    strides = {bag.stride for bag in bags}
    known_labels = any(bag.instance_labels is not None for bag in bags)

    def joined(field: str, *, shift: bool = False) -> Tensor | None:
        parts = [getattr(bag, field) for bag in bags]
        if any(part is None for part in parts):
            return None
        if not shift:
            return torch.cat(parts)
        return torch.cat([p + s for p, s in zip(parts, starts, strict=False)], dim=1)

    edges = joined("edges", shift=True)
    assert edges is not None
    return Bag(
        name=name,
        x=torch.cat([bag.x for bag in bags]),
        edges=edges,
        weights=torch.cat([bag.weights for bag in bags]),
        y=y,
        coords=joined("coords"),
        stride=strides.pop() if len(strides) == 1 else None,
        arcs=joined("arcs", shift=True),
        arc_weights=joined("arc_weights"),
        instance_labels=torch.cat([_instance_labels(bag) for bag in bags])
        if known_labels
        else None,
        slide=torch.arange(len(bags)).repeat_interleave(sizes).to(bags[0].x.device),
        slides=names,
        covariates=bags[0].covariates,
    )


def _instance_labels(bag: Bag) -> Tensor:
    if bag.instance_labels is not None:
        return bag.instance_labels
    return torch.full((len(bag),), -1, dtype=torch.long, device=bag.x.device)


def _check(name: str, bags: Sequence[Bag]) -> None:
    """Check that the slides, sorted by name, can form one bag."""
    first = bags[0]
    for previous, bag in pairwise(bags):
        if previous.name == bag.name:
            raise BagError(
                f"patient {name!r} has two slides named {bag.name!r}: give each a name of its own"
            )
    for bag in bags:
        if bag.slides:
            raise BagError(
                f"patient {name!r}: bag {bag.name!r} is itself joined from {len(bag.slides)} "
                "slides: give the slides"
            )
        for what, value, expected in (
            ("features", bag.x.shape[1], first.x.shape[1]),
            ("coordinates per instance", _axes(bag.coords), _axes(first.coords)),
            ("arcs", _whether(bag.arcs), _whether(first.arcs)),
            ("arc weights", _whether(bag.arc_weights), _whether(first.arc_weights)),
        ):
            if value != expected:
                raise BagError(
                    f"patient {name!r}: slide {bag.name!r} has {value} {what}, slide "
                    f"{first.name!r} has {expected}: the slides of a patient must agree"
                )
        if (bag.covariates is None) != (first.covariates is None) or (
            bag.covariates is not None
            and first.covariates is not None
            and not torch.equal(bag.covariates, first.covariates)
        ):
            raise BagError(
                f"patient {name!r}: slides {first.name!r} and {bag.name!r} have different "
                "covariates: give the patient's to both, or to none"
            )


def _axes(coords: Tensor | None) -> int:
    return 0 if coords is None else coords.shape[1]


def _whether(value: Tensor | None) -> str:
    return "no" if value is None else "some"
