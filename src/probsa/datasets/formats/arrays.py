"""Read NumPy files of other tools, without unpickling."""

import zipfile
from pathlib import Path

import numpy as np

from ...errors import BagError


def load_array(path: Path, *, mapped: bool = False) -> np.ndarray:
    """Load the array of a .npy file, or the first array of an .npz file.

    Raises:
        BagError: the file is damaged or in another format.
    """
    try:
        content = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return content
        with content:
            return content[content.files[0]]
    # zipfile.BadZipFile is not a subclass of any of the others.
    except (OSError, ValueError, EOFError, IndexError, zipfile.BadZipFile) as error:
        raise BagError(
            f"{path} cannot be read as {path.suffix}: it is damaged or in another format "
            f"({error}). Copy or make it again"
        ) from error
