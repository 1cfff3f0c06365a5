"""Download the authors' processed folders from the Hugging Face Hub, at the user's request."""

import hashlib
import shutil
import tarfile
from pathlib import Path

from ...core import LEDGER, is_disk_full, open_output, replacing, write_text
from ...errors import InputError, OutputExists, imports_from
from ..names import FEATURES_PREFIX

LABELS = ("labels", "patch_labels", "slice_labels", "coords")
"""Folders, or archives with these names, that accompany the features."""
BOOKKEEPING = ".cache/huggingface"
"""What huggingface_hub writes into the folder of a download."""
UNPACKED = ".unpacked"
"""Added to the name of an archive: the file that says what was unpacked from it.

The first line is the SHA-256 of the archive, and each further line the name of an array.
"""


def fetch_release(
    repository: str, into: Path | str, *, feature_set: str | None, revision: str | None
) -> Path:
    """Download one set of features with its labels, and unpack the archives.

    What has not changed since an earlier download is neither downloaded nor unpacked again.

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
        if is_disk_full(error) or isinstance(error, PermissionError):
            raise  # it is about this machine, not about the connection
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
    """Extract the arrays of an archive into the folder beside it that has its name.

    The folders within the archive do not count. An archive that was unpacked before, and whose
    arrays are all there, is skipped. Arrays that an earlier version of the archive held, and this
    one does not, are removed.

    Raises:
        InputError: the archive is damaged.
        OSError: the disk is full, or must not be written to.
    """
    folder = archive.with_name(archive.name.removesuffix(".tar.gz"))
    unpacked_file = archive.with_name(archive.name + UNPACKED)
    earlier_digest, earlier_arrays = _read_unpacked(unpacked_file)
    with archive.open("rb") as f:
        digest = hashlib.file_digest(f, "sha256").hexdigest()
    if digest == earlier_digest and all((folder / name).is_file() for name in earlier_arrays):
        return
    arrays: list[str] = []
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = Path(member.name).name
                if not member.isfile() or not name.endswith(".npy") or name.startswith("."):
                    continue
                content = tar.extractfile(member)
                assert content is not None, "it is a file"
                with replacing(folder / name) as temporary, temporary.open("wb") as f:
                    shutil.copyfileobj(content, f)
                arrays.append(name)
    except (tarfile.TarError, EOFError, OSError) as error:
        if is_disk_full(error) or isinstance(error, PermissionError):
            raise
        raise InputError(
            f"{archive} cannot be unpacked ({error}): remove it and fetch again"
        ) from error
    for name in set(earlier_arrays) - set(arrays):
        (folder / name).unlink(missing_ok=True)
    write_text(unpacked_file, "\n".join([digest, *arrays]) + "\n")


def _read_unpacked(file: Path) -> tuple[str, list[str]]:
    """Return the digest of the archive that was unpacked last, and the names of its arrays."""
    if not file.is_file():
        return "", []
    digest, *arrays = file.read_text(encoding="utf-8").splitlines()
    return digest, arrays
