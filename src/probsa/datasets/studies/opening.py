"""Prepare one of the paper's data sets, or a user's own cohort, by one call."""

from pathlib import Path
from typing import get_args

from ...errors import InputError
from ..bag_set import BagSet
from ..choices import StudyName
from ..opening import open_bags
from ..recognition import feature_folders
from . import camelyon16, panda, rsna, table
from .processed import ProcessedFolder
from .study import (
    STUDY_RECORD,
    OnBag,
    StudyDraft,
    StudySource,
    check_out,
    read_study,
    write_study,
)
from .study import Study as Study
from .study import StudyOptions as StudyOptions

STUDY_NAMES: tuple[StudyName, ...] = get_args(StudyName)
PLAIN = StudyOptions()
_PUBLISHED = {"rsna": rsna, "panda": panda, "camelyon16": camelyon16}
_EXPECTED = """\
a folder that probsa dataset wrote: dataset.json, labels.csv
the authors' processed CAMELYON16 or PANDA: splits.csv, patches_512/features/features_<encoder>/, \
labels/, patch_labels/ and coords/ in patches_512/
the authors' processed RSNA: splits.csv, features/features_<encoder>/, labels/, slice_labels/
RSNA's download: stage_2_train/*.dcm, stage_2_train.csv
PANDA's download: train.csv, train_images/, train_label_masks/
CAMELYON16's download: normal_001.tif, …, annotations/*.xml, reference.csv
a cohort: """


def open_study(
    name: StudyName,
    root: Path,
    *,
    out: Path,
    features: Path | None = None,
    feature_set: str | None = None,
    options: StudyOptions = PLAIN,
    on_bag: OnBag | None = None,
) -> Study:
    """Prepare a data set for training, and write it to `out`.

    If `root` is the output of an earlier call, it is read instead.

    Args:
        name: Name of the data set.
        root: The raw download (which also needs `features`), the authors' processed folder, or the
            folder of a cohort.
        out: Folder to which labels.csv, instance_labels/ and dataset.json are written.
        features: Features extracted from the raw download by probsa or another tool.
        feature_set: Which folder of features to use, if there are several.
        options: Options, and paths of files that are not in their default location.
        on_bag: Called with (done, total) while instance labels are computed.

    Raises:
        InputError: a file of the release is missing; the message names it.
        BagError: a bag cannot be used, or its number of instance labels does not fit.
        TableError: a table is invalid.
        OutputExists: `out` holds a labels.csv that probsa did not write.
    """
    if not root.is_dir():
        raise InputError(f"there is no folder {root}")
    if (root / STUDY_RECORD).is_file():
        return _read_prepared(name, root)
    check_out(out)
    processed = _processed(name, root) if features is None else None
    if processed is not None:
        folder = processed.base
    elif features is not None:
        folder = features
    else:
        folder = root / "features" if (root / "features").is_dir() else root
    bags = open_bags(folder, features=feature_set, cache_gb=0.0)
    features_root, chosen_set = _feature_folder(folder, bags)
    source = StudySource(
        root=root,
        bags=bags,
        options=options,
        features=features_root,
        feature_set=chosen_set,
        processed=processed,
    )
    draft = _draft(name, source, on_bag)
    return write_study(name, draft, source, out=out, on_bag=on_bag)


def recognise_study(root: Path) -> StudyName:
    """Recognise the data set in a folder.

    Raises:
        InputError: the folder is none of the data sets; lists the files of each.
    """
    if not root.is_dir():
        raise InputError(f"there is no folder {root}")
    if (root / STUDY_RECORD).is_file():
        name = read_study(root).name
        return next(known for known in STUDY_NAMES if known == name)
    # CAMELYON16 comes last, as it searches all subfolders.
    if rsna.recognised(root):
        return "rsna"
    if panda.recognised(root):
        return "panda"
    if table.recognised(root):
        return "table"
    if camelyon16.recognised(root):
        return "camelyon16"
    contents = ", ".join(sorted(p.name for p in root.iterdir())[:8]) or "nothing"
    raise InputError(
        f"{root} is not a known data set; it holds {contents}. Expected one of\n"
        f"{_EXPECTED}{table.NEEDED}"
    )


def _read_prepared(name: StudyName, root: Path) -> Study:
    study = read_study(root)
    if study.name != name:
        raise InputError(f"{root} holds {study.name}, not {name}")
    return study


def _processed(name: StudyName, root: Path) -> ProcessedFolder | None:
    return None if name == "table" else _PUBLISHED[name].processed(root)


def _draft(name: StudyName, source: StudySource, on_bag: OnBag | None) -> StudyDraft:
    if name == "rsna":
        return rsna.draft(source, on_bag)
    return table.draft(source) if name == "table" else _PUBLISHED[name].draft(source)


def _feature_folder(root: Path, bags: BagSet) -> tuple[Path, str | None]:
    """Return the feature folder for a run's settings, as root and name if there may be several."""
    name = next((key for key, path in feature_folders(root).items() if path == bags.folder), None)
    return (bags.folder, None) if name is None else (root, name)
