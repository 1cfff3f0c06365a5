"""Write CLAM's files: `patches`, `h5_files` and `pt_files`, chunked as CLAM does."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ...core import replacing, replacing_hdf5, write_csv
from ..labels import LabelTable
from .base import Outgoing, Writer, lost_resolution, single


class ClamWriter(Writer):
    """Writes one encoder per folder. A bag without corners, such as a scan, gets only
    `pt_files/<bag>.pt`, on which CLAM trains."""

    def present(self) -> set[str]:
        return {p.stem for p in self.out.glob("pt_files/*.pt")}

    def write(self, bag: Outgoing) -> tuple[Path, list[str]]:
        lost = lost_resolution(bag.metadata)
        features = single(bag.stored.features, lost)
        if bag.stored.instance_labels is not None:
            lost.append("instance labels")
        if self.encoder is not None:
            lost.append("name of the encoder")
        if bag.slide and bag.stored.coords is not None:
            self._write_patches(bag, bag.stored.coords, lost)
            self._write_h5(bag.name, features, bag.stored.coords)
        else:
            lost.append("coordinates" if bag.slide else "slice positions")
        path = self.out / "pt_files" / f"{bag.name}.pt"
        with replacing(path) as temporary, temporary.open("wb") as f:
            # PyTorch would store the name of the temporary file, and no two files would be equal
            torch.save(torch.from_numpy(features), f)
        return path, lost

    def _write_patches(self, bag: Outgoing, corners: np.ndarray, lost: list[str]) -> None:
        metadata, folder = bag.metadata, self.out / "patches"
        level, downsample = metadata.level, metadata.downsample
        side = (metadata.size_level0 or 0.0) / downsample
        if abs(side - round(side)) > 1e-6:
            lost.append(f"patch size {side:.6g} (rounded to {round(side)} pixels)")
        elif level == 0 and metadata.patch_size not in (None, side):
            lost.append(f"patch size at the encoder ({metadata.patch_size:g} pixels)")
        if metadata.overlap:
            lost.append(f"overlap ({metadata.overlap:g} pixels)")
        attributes: dict[str, object] = {
            "patch_size": np.int64(round(side)),
            "patch_level": np.int64(level),
            "downsample": np.array([downsample, downsample]),
            "name": bag.name,
            "save_path": str(folder),
        }
        if metadata.slide_size is None:
            lost.append("size of the slide (not stated by the source: no level_dim)")
        else:
            size_at_level = np.array(
                [int(side / downsample) for side in metadata.slide_size], np.int64
            )
            attributes |= {"level_dim": size_at_level, "downsampled_level_dim": size_at_level}
        path = folder / f"{bag.name}.h5"
        with replacing_hdf5(path) as f:
            dataset = f.create_dataset(
                "coords", data=corners.astype(np.int64), chunks=(1, 2), maxshape=(None, 2)
            )
            dataset.attrs.update(attributes)

    def _write_h5(self, name: str, features: np.ndarray, corners: np.ndarray) -> None:
        path, width = self.out / "h5_files" / f"{name}.h5", features.shape[1]
        with replacing_hdf5(path) as f:
            f.create_dataset("features", data=features, chunks=(32, width), maxshape=(None, width))
            f.create_dataset(
                "coords", data=corners.astype(np.int32), chunks=(32, 2), maxshape=(None, 2)
            )

    def write_labels(self, table: LabelTable, bags: Sequence[str]) -> list[str]:
        """Write CLAM's label table `case_id,slide_id,label`."""
        wanted = set(bags)
        rows = [
            {"case_id": table.group(r), "slide_id": bag, "label": table.classes[y]}
            for r, (bag, y) in enumerate(zip(table.bags, table.labels, strict=True))
            if bag in wanted and y is not None
        ]
        write_csv(self.out / "labels.csv", ["case_id", "slide_id", "label"], rows)
        return [] if table.splits is None and table.folds is None else ["folds and split"]
