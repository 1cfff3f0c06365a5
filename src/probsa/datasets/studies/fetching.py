"""The authors' processed folders from the Hugging Face Hub: only where a user asks for them."""

import shutil
import tarfile
from pathlib import Path

from ...core import replacing
from ...errors import InputError, MissingExtra
from ..recognition import PREFIX

LABELS = ("labels", "patch_labels", "slice_labels", "coords")
"""Folders, or archives of that name, that belong to the features."""


def fetch(repository: str, into: Path, *, feature_set: str | None, revision: str | None) -> Path:
    """Downloads one set of features with its labels, and unpacks what is packed.

    What is there already is not downloaded again.

    Args:
        repository: `owner/name` of a data set on the hub.
        into: a folder.
        feature_set: which features: `features_UNI`, or `UNI`.
        revision: a branch, a tag or a commit; None: the newest.

    Raises:
        MissingExtra: huggingface_hub is not installed.
        InputError: no features named, no such repository, no connection, or nothing of that name.
    """
    try:
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError as error:
        raise MissingExtra("huggingface_hub", "encoders") from error
    if feature_set is None:
        raise InputError(
            "which features are to be fetched? Give --feature-set (features_UNI, say): a "
            "repository holds several, each of many gigabytes"
        )
    named = PREFIX + feature_set.rpartition("/")[2].removeprefix(PREFIX)
    patterns = ["*splits.csv", f"*features/{named}.tar.gz", f"*features/{named}/*"]
    patterns += [p for f in LABELS for p in (f"*{f}.tar.gz", f"{f}/*", f"*/{f}/*")]
    try:
        huggingface_hub.snapshot_download(
            repository,
            repo_type="dataset",
            revision=revision,
            local_dir=into,
            allow_patterns=patterns,
        )
    except HFValidationError as error:
        raise InputError(f"{repository!r} is no repository's name: give owner/name") from error
    except HfHubHTTPError as error:
        raise InputError(
            f"{repository} cannot be fetched from the Hugging Face Hub: {error}. Is the name "
            "right, and have its terms been accepted?"
        ) from error
    except OSError as error:  # LocalEntryNotFoundError and OfflineModeIsEnabled are such
        raise InputError(
            f"{repository} cannot be fetched: the Hugging Face Hub cannot be reached ({error}). "
            "Fetch it where there is a connection, and give its folder here"
        ) from error
    for archive in sorted(into.rglob("*.tar.gz")):
        _unpack(archive)
    if not any(into.rglob(f"features/{named}/*.npy")):
        raise InputError(
            f"{repository} holds no features named {named}: look at "
            f"https://huggingface.co/datasets/{repository}/tree/main for those it has"
        )
    return into


def _unpack(archive: Path) -> None:
    """The arrays of an archive into the folder that bears its name; nothing else of it.

    Some archives hold the folder, some its files alone: only file names count.
    """
    folder = archive.with_name(archive.name.removesuffix(".tar.gz"))
    try:
        with tarfile.open(archive) as packed:
            for member in packed:
                name = Path(member.name).name
                if not member.isfile() or not name.endswith(".npy") or name.startswith("."):
                    continue
                held = packed.extractfile(member)
                assert held is not None, "it is a file"
                if (folder / name).is_file() and (folder / name).stat().st_size == member.size:
                    continue
                with replacing(folder / name) as temporary, temporary.open("wb") as f:
                    shutil.copyfileobj(held, f)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InputError(
            f"{archive} cannot be unpacked ({error}): remove it and fetch again, or free some space"
        ) from error
