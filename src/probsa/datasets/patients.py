"""Stage 5: patients as bags. All slides of a patient form one bag, named after the patient."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Literal

import numpy as np

from ..core import Bag, BagKind, StoredBag, counted, join_bags
from ..errors import BagError, TableError
from .bag_notes import MissingSlides
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
        expected: dict[str, tuple[str, ...]] = {}
        for patient, rows in rows_by_patient(table).items():
            expected[patient] = tuple(sorted(table.bags[row] for row in rows))
        stored = set(slide_bags.names)
        if missing == "refuse":
            _refuse_absent(expected, stored, table)
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
        self._expected = expected
        self._used = used
        for patient, slides in expected.items():
            unused: dict[str, Literal["no bag", "no instances"]] = {}
            for slide in slides:
                if slide not in used[patient]:
                    unused[slide] = "no instances" if slide in stored else "no bag"
            if unused:
                note = MissingSlides(used=len(used[patient]), missing=unused)
                self.notes[patient] = (note,)

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
        first, *others = self.metadata_of(name)
        common = {}
        remarks = dict.fromkeys(first.remarks)
        unreadable = first.unreadable
        for f in fields(Metadata):
            value = getattr(first, f.name)
            if all(getattr(m, f.name) == value for m in others):
                common[f.name] = value
        for m in others:
            remarks |= dict.fromkeys(m.remarks)
            unreadable += m.unreadable
        return Metadata(**common | {"unreadable": unreadable, "remarks": tuple(remarks)})

    def metadata_of(self, name: str) -> tuple[Metadata, ...]:
        return tuple(self.slide_bags.metadata(slide) for slide in self.slides_of(name))

    def formats(self) -> frozenset[str]:
        return self.slide_bags.formats()

    def _read(self, name: str) -> StoredBag:
        stored = [self.slide_bags.stored(slide) for slide in self._used[name]]
        kinds: set[BagKind | None] = {s.kind for s in stored}
        strides = {s.stride for s in stored}
        # the coordinates of slides are unrelated: `_centred` puts them into one frame
        return StoredBag(
            name=name,
            features=np.concatenate([s.features for s in stored]),
            coords=_joined([_centred(s.coords) for s in stored]),
            instance_labels=_joined_labels(stored),
            intensity=_joined([s.intensity for s in stored]),
            kind=kinds.pop() if len(kinds) == 1 else None,
            stride=strides.pop() if len(strides) == 1 else None,
        )

    def _peek(self, name: str) -> tuple[int, int]:
        instances = sum(self.slide_bags.size(slide) for slide in self._used[name])
        return instances, self.slide_bags.in_dim


def _refuse_absent(
    expected: Mapping[str, Sequence[str]], stored: set[str], table: LabelTable
) -> None:
    """Refuse lines of slides that have no bag; name the patients who would have none left."""
    absent: list[str] = []
    emptied: list[str] = []
    for patient, slides in expected.items():
        absent += [f"{slide!r} of {patient!r}" for slide in slides if slide not in stored]
        if not stored.intersection(slides):
            emptied.append(patient)
    if not absent:
        return
    none_left = ""
    if emptied:
        patients = counted(len(emptied), "patient")
        none_left = f" {patients} would have none left ({listed(emptied, quote=False)})."
    raise TableError(
        f"{table.where}: {counted(len(absent), 'slide')} without a bag "
        f"({listed(absent, quote=False)}).{none_left} Add the slides or remove their lines, or set "
        "missing to leave_out to train on the others"
    )


def _centred(coords: np.ndarray | None) -> np.ndarray | None:
    """Return coordinates around the centre of their slide: all slides share one frame."""
    if coords is None:
        return None
    places = coords.astype(np.float64)
    return places - (places.min(0) + places.max(0)) / 2


def _joined(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Return the rows of all slides; None unless every slide has them."""
    present = [array for array in arrays if array is not None]
    return np.concatenate(present) if len(present) == len(arrays) else None


def _joined_labels(stored: Sequence[StoredBag]) -> np.ndarray | None:
    """Return the instance labels of all slides, −1 (unknown) for slides without; None if none has
    any."""
    if all(s.instance_labels is None for s in stored):
        return None
    labels = []
    for s in stored:
        unknown = np.full(len(s.features), -1)
        labels.append(unknown if s.instance_labels is None else s.instance_labels)
    return np.concatenate(labels)
