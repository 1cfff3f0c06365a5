"""Write probsa's format: one HDF5 file per bag, with all metadata as attributes of `coords`."""

from pathlib import Path

from ...core import StoredBag, hdf5_files, write_bag
from ..metadata import Metadata
from .writing import Writer, report_no_resolution, trident_attributes


class ProbsaWriter(Writer):
    """Writes `OUT/<bag>.h5`."""

    def files(self) -> dict[str, Path]:
        return {path.stem: path for path in hdf5_files(self.out)}

    def write(self, bag: StoredBag, metadata: Metadata, lost: list[str]) -> Path:
        path, is_slide = self.out / f"{bag.name}.h5", bag.inferred_kind == "slide"
        attributes = trident_attributes(metadata, stride=bag.stride) if is_slide else {}
        write_bag(
            path,
            features=bag.features,
            kind=bag.inferred_kind,
            coords=bag.coords,
            instance_labels=bag.instance_labels,
            intensity=bag.intensity,
            attributes={k: v for k, v in attributes.items() if v is not None},
            stamps={} if self.encoder is None else {"encoder": self.encoder},
        )
        if is_slide:
            report_no_resolution(metadata, lost)
        return path
