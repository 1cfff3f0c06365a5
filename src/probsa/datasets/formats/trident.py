"""Write TRIDENT's job folder: `<mag>x_<size>px_<overlap>px_overlap/`, patches and features."""

from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np

from ...core import StoredBag, replacing_hdf5
from ...errors import BagError
from ..metadata import Metadata
from .writing import Writer, corners_of, report_no_resolution, trident_attributes, whole


class TridentWriter(Writer):
    """Writes `patches/<bag>_patches.h5` and `features_<encoder>/<bag>.h5`, as TRIDENT does.

    A bag of unknown magnification goes to `level0_…`, with its patch size in level-0 pixels.
    """

    patterns = ("*px_overlap/{features}/*.h5",)

    def write(self, bag: StoredBag, metadata: Metadata, lost: list[str]) -> Path:
        if bag.inferred_kind != "slide":
            raise BagError(
                f"bag {bag.name!r} is a scan, but TRIDENT's files hold slides: convert it to "
                "torchmil or probsa"
            )
        corners = corners_of(bag, "TRIDENT")
        scale = "level0" if metadata.magnification is None else f"{metadata.magnification:g}x"
        size, overlap = whole(metadata.patch_size), round(metadata.overlap or 0)
        folder = self.out / f"{scale}_{size:g}px_{overlap}px_overlap"
        attributes = trident_attributes(metadata, stride=bag.stride) | {"name": bag.name}
        with replacing_hdf5(folder / "patches" / f"{bag.name}_patches.h5") as f:
            _write_corners(f, corners, attributes | {"savetodir": str(folder)})
        path = folder / self.features / f"{bag.name}.h5"
        place = {"savetodir": str(path.parent)}
        with replacing_hdf5(path) as f:
            rows = f.create_dataset("features", data=bag.features)
            rows.attrs.update({"name": bag.name, **place, "encoder": self.encoder or "None"})
            _write_corners(f, corners, attributes | place)
        report_no_resolution(metadata, lost)
        if bag.instance_labels is not None:
            lost.append("instance labels")
        return path


def _write_corners(f: h5py.File, corners: np.ndarray, attributes: Mapping[str, object]) -> None:
    dataset = f.create_dataset("coords", data=corners.astype(np.int64))
    dataset.attrs.update({k: "None" if v is None else v for k, v in attributes.items()})
