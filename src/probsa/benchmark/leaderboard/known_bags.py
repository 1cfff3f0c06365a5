"""The bags of a data set as its runs, or a first submitted row, have them; rows must agree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from ...evaluation import SubmittedBag
from .entries import Entry, InstanceCounts, most_labelled

TITLES = {
    "y": "label",
    "group": "group",
    "fold": "fold",
    "n": "number of instances",
    "labelled": "number of instances with a label",
    "positive": "number of positive instances",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownBag:
    """What is the same in every row."""

    y: int
    group: str
    fold: int | None
    """None if the runs have a fixed test part."""
    n: int
    labelled: int
    positive: int

    @classmethod
    def of(cls, bag: SubmittedBag) -> "KnownBag":
        """Return what a submitted bag states."""
        return cls(**{f.name: getattr(bag, f.name) for f in fields(cls)})


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownSet:
    """The bags of a data set, and where they are known from."""

    bags: Mapping[str, KnownBag]
    origin: str

    def difference(self, given: Mapping[str, SubmittedBag]) -> str | None:
        """Return the first difference of submitted bags, in words; None if there is none."""
        absent = sorted(self.bags.keys() - given.keys())
        if absent:
            return (
                f"its {len(given)} bags are not those of the set, which has {len(self.bags)}: bag "
                f"{absent[0]!r} is missing; test every fold once"
            )
        for name in sorted(given):
            if name not in self.bags:
                return f"bag {name!r} is not in {self.origin}"
            known = self.bags[name]
            for key, title in TITLES.items():
                came, expected = getattr(given[name], key), getattr(known, key)
                if expected is not None and came != expected:
                    return (
                        f"the {title} of bag {name!r} is {came!r}, expected {expected!r} as in "
                        f"{self.origin}"
                    )
        return None


def known_sets(entries: Sequence[Entry]) -> dict[str, KnownSet]:
    """Return the bags of every data set of which the experiment has runs with instance labels.

    Labels, groups and folds are those of the scores. Where methods differ in how many instances of
    a bag have a label, the most are taken.
    """
    sets: dict[str, KnownSet] = {}
    for data in dict.fromkeys(e.data for e in entries if e.scores is not None):
        of_data = [e for e in entries if e.data == data and e.counts]
        counts: dict[str, InstanceCounts] = {}
        for entry in of_data:
            for bag, c in entry.counts.items():
                counts[bag] = most_labelled(counts.get(bag), c)
        first = of_data[0]
        assert first.scores is not None
        y, folds = first.scores.y.tolist(), first.scores.split[0].tolist()
        bags = {
            bag: KnownBag(
                y=y[k],
                group=first.groups[k],
                fold=folds[k] if first.scores.folds else None,
                n=counts[bag].n,
                labelled=counts[bag].labelled,
                positive=counts[bag].positive,
            )
            for k, bag in enumerate(first.bags)
        }
        sets[data] = KnownSet(bags=bags, origin="the runs of this experiment")
    return sets
