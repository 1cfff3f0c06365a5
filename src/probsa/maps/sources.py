"""Stage 10: find the slide or scan of a bag in a work folder, or by name in any folder.

This module is loaded on use, since it imports the slide readers.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..cohorts import PatchSet, Record, WorkFolder, find_inputs, open_source, read_coordinates
from ..errors import BagError, InputError, hint
from ..evaluation import Prediction
from ..patches import Patches
from ..slides import Scan, Slide, resolution_of


class CohortSources:
    """The slides and scans of a cohort, by the names of their bags.

    Args:
        folder: A work folder of `probsa patch`, which lists its slides and their patches; or a
            folder of slides or series, which get the names that `probsa patch` would give them.
        mpp: Micrometres per level-0 pixel of slides whose files do not state it; or a mapping from
            names of slides, which takes precedence over the files.

    Raises:
        InputError: The folder does not exist or holds no slides or scans.
    """

    def __init__(self, folder: Path, *, mpp: float | Mapping[str, float] | None = None) -> None:
        self.folder = Path(folder)
        self._mpp = mpp
        self._sets = tuple(WorkFolder(self.folder).sets().values())
        if self._sets:
            records = [record for s in self._sets for record in s.records()]
        else:
            records = [item.record() for item in find_inputs(self.folder)]
        self._records = {r.name: r for r in records}

    def record(self, p: Prediction) -> Record:
        """Return the record of the bag's slide or scan.

        Raises:
            InputError: There is no slide or scan of that name.
        """
        listed = self._records.get(p.name)
        if listed is None:
            raise InputError(
                f"{self.folder} has no slide or scan named {p.name!r}."
                f"{hint(p.name, self._records)} It has {len(self._records)} others"
            )
        patch_set = self._set_of(p)
        stored = None if patch_set is None else Record.read(patch_set[0].record("patch", p.name))
        record = stored or listed
        if isinstance(self._mpp, Mapping):
            mpp = resolution_of(self._mpp, p.name, Path(record.source).name)
            return record if mpp is None else replace(record, mpp=mpp)
        return record if record.mpp is not None else replace(record, mpp=self._mpp)

    def open(self, p: Prediction) -> Slide | Scan:
        """Return the bag's slide, open for reading, or its scan.

        Raises:
            InputError: There is no slide or scan of that name.
            SlideError: The file is missing or cannot be read.
        """
        return open_source(self.record(p))

    def patches(self, p: Prediction) -> Patches | None:
        """Return how the bag's patches were cut, or None without a work folder."""
        patch_set = self._set_of(p)
        return None if patch_set is None else patch_set[1]

    def _set_of(self, p: Prediction) -> tuple[PatchSet, Patches] | None:
        """Return the patch set that contains all corners of the bag, with its patches."""
        if p.coords is None or p.coords.shape[-1] != 2:
            return None
        corners = np.unique(p.coords, axis=0)
        for patch_set in self._sets:
            try:
                patches = read_coordinates(patch_set.patches_file(p.name)).patches()
            except BagError:
                continue
            both = np.concatenate([np.unique(patches.coords, axis=0), corners])
            if len(np.unique(both, axis=0)) == len(both) - len(corners):
                return patch_set, patches
        return None
