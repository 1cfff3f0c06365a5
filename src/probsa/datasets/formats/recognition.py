"""Which tool wrote the files of a folder. PyTorch, which their readers need, is not imported."""

from pathlib import Path

from ...core import is_there, open_hdf5

STAMP_FEATURES = ("feats", "patch_embeddings")
"""Names of STAMP's features: of tiles, and of tiles in multiplex images."""
INDEXES = (".index.npz", ".index.npy")
"""Ends of the names of slideflow's files of coordinates."""
SLIDEFLOW_CONFIG = "bags_config.json"


def is_stamp(path: Path) -> bool:
    """Return whether a file holds STAMP's features, not probsa's, TRIDENT's or CLAM's."""
    with open_hdf5(path) as f:
        return "features" not in f and any(name in f for name in STAMP_FEATURES)


def is_slideflow(folder: Path, files: list[Path]) -> bool:
    """Return whether these `.pt` files are slideflow's, not CLAM's."""
    if (folder / SLIDEFLOW_CONFIG).is_file():
        return True
    return any(find_index(path) is not None for path in files)


def find_index(path: Path) -> Path | None:
    """Return slideflow's file of coordinates beside a file of features; None if there is none."""
    candidates = (path.with_name(path.stem + ending) for ending in INDEXES)
    return next((candidate for candidate in candidates if is_there(candidate)), None)
