"""Foreign NumPy files, never unpickled."""

import zipfile
from pathlib import Path

import numpy as np

from ...errors import BagError


def load_array(path: Path, *, mapped: bool = False) -> np.ndarray:
    """The array of a .npy file, or the first of an .npz file.

    Raises:
        BagError: the file is damaged or foreign.
    """
    try:
        held = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
        if isinstance(held, np.ndarray):
            return held
        with held:
            return held[held.files[0]]
    # zipfile.BadZipFile is none of the others
    except (OSError, ValueError, EOFError, IndexError, zipfile.BadZipFile) as error:
        raise BagError(
            f"{path} cannot be read as {path.suffix}: it is truncated, damaged or foreign "
            f"({error}). Copy or make it again"
        ) from error
