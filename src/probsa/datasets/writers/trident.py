"""Write TRIDENT's job folder: `<mag>x_<size>px_<overlap>px_overlap/`, patches and features."""

from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np

from ...core import replacing_hdf5
from .base import Outgoing, Writer, missing_resolution, needs_a_slide, trident_attributes, whole


class TridentWriter(Writer):
    """Writes `patches/<bag>_patches.h5` and `features_<encoder>/<bag>.h5`, as TRIDENT does.

    A bag of unknown magnification goes to `level0_…`, with its patch size in level-0 pixels.
    """

    def present(self) -> set[str]:
        return {p.stem for p in self.out.glob(f"*px_overlap/{self.features}/*.h5")}

    def write(self, bag: Outgoing) -> tuple[Path, list[str]]:
        corners, metadata = needs_a_slide(bag, "TRIDENT"), bag.metadata
        scale = "level0" if metadata.magnification is None else f"{metadata.magnification:g}x"
        size, overlap = whole(metadata.patch_size), round(metadata.overlap or 0)
        folder = self.out / f"{scale}_{size:g}px_{overlap}px_overlap"
        attributes = trident_attributes(metadata, stride=bag.stored.stride) | {"name": bag.name}
        patches_path = folder / "patches" / f"{bag.name}_patches.h5"
        with replacing_hdf5(patches_path) as f:
            _corners(f, corners, attributes | {"savetodir": str(folder)})
        path = folder / self.features / f"{bag.name}.h5"
        attributes |= {"savetodir": str(path.parent)}
        with replacing_hdf5(path) as f:
            rows = f.create_dataset("features", data=bag.stored.features)
            rows.attrs["name"] = bag.name
            rows.attrs["savetodir"] = str(path.parent)
            rows.attrs["encoder"] = self.encoder or "None"
            _corners(f, corners, attributes)
        lost = [] if bag.stored.instance_labels is None else ["instance labels"]
        return path, [*missing_resolution(metadata), *lost]


def _corners(f: h5py.File, corners: np.ndarray, attributes: Mapping[str, object]) -> None:
    dataset = f.create_dataset("coords", data=corners.astype(np.int64))
    for key, value in attributes.items():
        dataset.attrs[key] = "None" if value is None else value
