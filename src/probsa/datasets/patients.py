"""Stage 5: patients as bags. All slides of a patient form one bag, named after the patient."""

from dataclasses import fields
from typing import Literal

import numpy as np

from ..core import Bag, StoredBag, counted, join_bags
from ..errors import BagError, TableError
from .bag_set import BagSet
from .labels import LabelTable
from .metadata import Metadata
from .names import listed
from .patient_table import rows_by_patient


class PatientBags(BagSet):
    """The patients of a label table as bags; see `join_bags` for how their slides are joined.

    A bag is named after its patient, and so is the noise of its prediction. Slides without
    instances are left out of their patient. Slides that no line of the table names are not used.

    Args:
        slide_bags: The slides, by the names in the table.
        table: Table with one line for each slide, and groups; labels are not used.
        missing: What to do about lines whose slide has no bag: training refuses them, and
            prediction uses the slides that are there (`leave_out`), which `slide_counts` reports.

    Raises:
        TableError: the table has no groups, or a slide is missing.
        BagError: no patient has a slide with instances.
    """

    def __init__(
        self,
        slide_bags: BagSet,
        table: LabelTable,
        *,
        missing: Literal["refuse", "leave_out"] = "refuse",
    ) -> None:
        expected = {
            patient: tuple(sorted(table.bags[r] for r in rows))
            for patient, rows in rows_by_patient(table).items()
        }
        stored = set(slide_bags.names)
        absent = [
            f"{s!r} of {p!r}" for p, each in expected.items() for s in each if s not in stored
        ]
        if absent and missing == "refuse":
            empty = [p for p, slides in expected.items() if not stored & set(slides)]
            none_left = f" {counted(len(empty), 'patient')} would have none left "
            none_left += f"({listed(empty, quote=False)})."
            raise TableError(
                f"{table.where}: {counted(len(absent), 'slide')} without a bag "
                f"({listed(absent, quote=False)}).{none_left if empty else ''} Add the slides or "
                "remove their lines, or set missing to leave_out to train on the others"
            )
        usable = stored - set(slide_bags.empty())
        used = {p: tuple(s for s in slides if s in usable) for p, slides in expected.items()}
        paths = {p: slide_bags.folder for p, slides in used.items() if slides}
        super().__init__(
            slide_bags.folder, paths, graph=slide_bags.graph, cache_gb=slide_bags.cache_gb
        )
        if not paths:
            raise BagError(
                f"none of the {counted(len(expected), 'patient')} of {table.where} has a slide "
                f"with instances in {slide_bags.folder}: give the folder with these slides"
            )
        self.slide_bags = slide_bags
        """The slides, one bag each."""
        self.unit = slide_bags.unit
        self.max_bag_gb = slide_bags.max_bag_gb
        self.without_slides = tuple(p for p in expected if not used[p])
        """Patients of the table that are no bags, as none of their slides can be used."""
        self.notes = slide_bags.notes
        self._expected, self._used = expected, used
        for patient, slides in expected.items():
            reasons = [
                f"{s} ({'no instances' if s in stored else 'no bag'})"
                for s in slides
                if s not in used[patient]
            ]
            if reasons:
                self.notes[patient] = (
                    f"{'' if used[patient] else 'left out: '}{len(used[patient])} of "
                    f"{counted(len(slides), 'slide')} used; missing: {listed(reasons, quote=False)}"
                )

    def slides_of(self, name: str) -> tuple[str, ...]:
        """Return the slides that the bag of a patient consists of, in their order in the bag."""
        return self._used[self._known(name)]

    def slide_counts(self, name: str) -> tuple[int, int]:
        """Return how many slides of a patient are used, and how many the table names."""
        return len(self.slides_of(name)), len(self._expected[name])

    def _new_bag(self, name: str) -> Bag:
        """Return the bag of a patient, which is not cached, but its slides are."""
        return join_bags(name, [self.slide_bags.bag(slide) for slide in self._used[name]], y=None)

    def metadata(self, name: str) -> Metadata:
        """Return what all slides of a patient state alike; see `metadata_of` for each slide."""
        each = self.metadata_of(name)
        common = {
            f.name: getattr(each[0], f.name)
            for f in fields(Metadata)
            if all(getattr(m, f.name) == getattr(each[0], f.name) for m in each)
        }
        remarks = tuple(dict.fromkeys(remark for m in each for remark in m.remarks))
        return Metadata(
            **{**common, "unreadable": sum(m.unreadable for m in each), "remarks": remarks}
        )

    def metadata_of(self, name: str) -> tuple[Metadata, ...]:
        return tuple(self.slide_bags.metadata(slide) for slide in self.slides_of(name))

    def formats(self) -> frozenset[str]:
        return self.slide_bags.formats()

    def _read(self, name: str) -> StoredBag:
        stored = [self.slide_bags.stored(slide) for slide in self._used[name]]
        first, strides = stored[0], {s.stride for s in stored}
        coords = [s.coords.astype(np.float64) for s in stored if s.coords is not None]
        coords = [at - (at.min(0) + at.max(0)) / 2 for at in coords]  # slides share one frame
        intensity = [s.intensity for s in stored if s.intensity is not None]
        labelled = any(s.instance_labels is not None for s in stored)
        labels = [
            np.full(len(s.features), -1) if s.instance_labels is None else s.instance_labels
            for s in stored
            if labelled
        ]

        def joined(arrays: list[np.ndarray]) -> np.ndarray | None:
            return np.concatenate(arrays) if len(arrays) == len(stored) else None

        return StoredBag(
            name=name,
            features=np.concatenate([s.features for s in stored]),
            coords=joined(coords),
            instance_labels=joined(labels),
            intensity=joined(intensity),
            kind=first.kind if all(s.kind == first.kind for s in stored) else None,
            stride=strides.pop() if len(strides) == 1 else None,
        )

    def _peek(self, name: str) -> tuple[int, int]:
        return sum(self.slide_bags.size(s) for s in self._used[name]), self.slide_bags.in_dim
