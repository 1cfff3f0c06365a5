"""Download the authors' processed folders from the Hugging Face Hub, at the user's request."""

import shutil
import tarfile
from pathlib import Path

from ...core import LEDGER, open_output, replacing
from ...errors import InputError, OutputExists, imports_from
from ..names import FEATURES_PREFIX

LABELS = ("labels", "patch_labels", "slice_labels", "coords")
"""Folders, or archives with these names, that accompany the features."""
BOOKKEEPING = ".cache/huggingface"
"""What huggingface_hub writes into the folder of a download."""


def fetch_release(
    repository: str, into: Path | str, *, feature_set: str | None, revision: str | None
) -> Path:
    """Download one set of features with its labels, and unpack the archives.

    Files that exist already are not downloaded again.

    Args:
        repository: `owner/name` of a data set on the Hub.
        into: The folder to download to.
        feature_set: Name of the features: `features_UNI` or `UNI`.
        revision: A branch, a tag or a commit; None: the newest.

    Raises:
        MissingExtra: huggingface_hub is not installed.
        OutputExists: `into` holds files, and no download.
        InputError: `feature_set` is None, the repository or the features do not exist, or the Hub
            cannot be reached.
    """
    into = Path(into)
    is_download = (into / LEDGER).is_dir() or (into / BOOKKEEPING).is_dir()
    if into.is_dir() and any(into.iterdir()) and not is_download:
        raise OutputExists(f"{into} holds files that were not downloaded to it: move them away")
    with imports_from("hub", "huggingface_hub"):
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    if feature_set is None:
        raise InputError(
            "no features chosen: give --feature-set (for example, features_UNI), since a "
            "repository holds several, each of many gigabytes"
        )
    open_output(into)
    name = feature_set.rpartition("/")[2]
    folder_name = FEATURES_PREFIX + name.removeprefix(FEATURES_PREFIX)
    patterns = ["*splits.csv", f"*features/{folder_name}.tar.gz", f"*features/{folder_name}/*"]
    for folder in LABELS:
        patterns += [f"*{folder}.tar.gz", f"{folder}/*", f"*/{folder}/*"]
    try:
        huggingface_hub.snapshot_download(
            repository,
            repo_type="dataset",
            revision=revision,
            local_dir=into,
            allow_patterns=patterns,
        )
    except HFValidationError as error:
        raise InputError(f"{repository!r} is not a repository name: give owner/name") from error
    except HfHubHTTPError as error:
        raise InputError(
            f"{repository} cannot be fetched from the Hugging Face Hub: {error}. Is the name "
            "right, and have its terms been accepted?"
        ) from error
    except OSError as error:  # includes LocalEntryNotFoundError and OfflineModeIsEnabled
        raise InputError(
            f"{repository} cannot be fetched: the Hugging Face Hub cannot be reached ({error}). "
            "Fetch it on a machine with a connection, and give its folder here"
        ) from error
    for archive in sorted(into.rglob("*.tar.gz")):
        _unpack(archive)
    if not any(into.rglob(f"features/{folder_name}/*.npy")):
        raise InputError(
            f"{repository} holds no features named {folder_name}: look at "
            f"https://huggingface.co/datasets/{repository}/tree/main for the available ones"
        )
    return into


def _unpack(archive: Path) -> None:
    """Extract the arrays of an archive, which may be in a folder, into one with its name."""
    folder = archive.with_name(archive.name.removesuffix(".tar.gz"))
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = Path(member.name).name
                if not member.isfile() or not name.endswith(".npy") or name.startswith("."):
                    continue
                content = tar.extractfile(member)
                assert content is not None, "it is a file"
                if (folder / name).is_file() and (folder / name).stat().st_size == member.size:
                    continue
                with replacing(folder / name) as temporary, temporary.open("wb") as f:
                    shutil.copyfileobj(content, f)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InputError(
            f"{archive} cannot be unpacked ({error}): remove it and fetch again, or free some space"
        ) from error
