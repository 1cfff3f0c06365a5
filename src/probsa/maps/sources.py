"""Stage 10: which slide or scan a bag was made of: from a work folder, or by name from a folder.

Loaded on use: it needs what reads slides.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from ..cohorts import PatchSet, Record, WorkFolder, find_inputs, open_source, read_coordinates
from ..errors import BagError, InputError, hint
from ..evaluation import Prediction
from ..patches import Patches
from ..slides import Scan, Slide


class CohortSources:
    """The slides and scans of a cohort, by the names of their bags.

    Args:
        folder: a work folder of `probsa patch`, which knows them and their patches; or a folder of
            slides or of series, whose names are those that `probsa patch` would give them.
        mpp: micrometres per level-0 pixel of slides that do not say.

    Raises:
        InputError: no such folder, or nothing in it.
    """

    def __init__(self, folder: Path, *, mpp: float | None = None) -> None:
        self.folder = Path(folder)
        self._mpp = mpp
        self._sets = tuple(WorkFolder(self.folder).sets().values())
        if self._sets:
            found = [record for s in self._sets for record in s.records()]
        else:
            found = [item.record() for item in find_inputs(self.folder)]
        self._records = {r.name: r for r in found}

    def record(self, p: Prediction) -> Record:
        """What is known of the slide or scan of a bag.

        Raises:
            InputError: there is none of that name.
        """
        found = self._records.get(p.name)
        if found is None:
            raise InputError(
                f"{self.folder} has no slide or scan named {p.name!r}."
                f"{hint(p.name, self._records)} There are {len(self._records)} others"
            )
        kept = self._set_of(p)
        record = None if kept is None else Record.read(kept[0].record("patch", p.name))
        found = found if record is None else record
        return found if found.mpp is not None else replace(found, mpp=self._mpp)

    def open(self, p: Prediction) -> Slide | Scan:
        """The slide, open for reading, or the scan.

        Raises:
            InputError: there is none of that name.
            SlideError: it is gone, or cannot be read.
        """
        return open_source(self.record(p))

    def patches(self, p: Prediction) -> Patches | None:
        """How the bag's patches were cut; None where no work folder knows."""
        kept = self._set_of(p)
        return None if kept is None else kept[1]

    def _set_of(self, p: Prediction) -> tuple[PatchSet, Patches] | None:
        """The set of patches that the bag was made of: the one that holds all its corners."""
        if p.coords is None or p.coords.shape[-1] != 2:
            return None
        own = np.unique(p.coords, axis=0)
        for s in self._sets:
            try:
                patches = read_coordinates(s.patches_file(p.name)).patches()
            except BagError:
                continue
            both = np.concatenate([np.unique(patches.coords, axis=0), own])
            if len(np.unique(both, axis=0)) == len(both) - len(own):
                return s, patches
        return None
