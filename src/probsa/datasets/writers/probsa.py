"""Write probsa's format: one HDF5 file per bag, with all metadata as attributes of `coords`."""

from pathlib import Path

from ...core import hdf5_files, write_bag
from .base import Outgoing, Writer, missing_resolution, trident_attributes


class ProbsaWriter(Writer):
    """Writes `OUT/<bag>.h5`."""

    def present(self) -> set[str]:
        return {p.stem for p in hdf5_files(self.out)}

    def write(self, bag: Outgoing) -> tuple[Path, list[str]]:
        path, stored = self.out / f"{bag.name}.h5", bag.stored
        metadata = trident_attributes(bag.metadata, stride=stored.stride)
        write_bag(
            path,
            features=stored.features,
            kind=stored.inferred_kind,
            coords=stored.coords,
            instance_labels=stored.instance_labels,
            intensity=stored.intensity,
            attributes={k: v for k, v in metadata.items() if v is not None} if bag.slide else {},
            stamps={} if self.encoder is None else {"encoder": self.encoder},
        )
        return path, missing_resolution(bag.metadata) if bag.slide else []
