"""Prepare one of the paper's data sets, or a user's own cohort, by one call."""

from pathlib import Path
from typing import get_args

from ...core import optional_path
from ...errors import InputError
from ..choices import StudyName
from ..formats.torchmil import TorchmilBags
from ..opening import feature_folders, open_bags
from . import camelyon16, panda, rsna, table
from .release import Release
from .study import (
    LABELS,
    STUDY_RECORD,
    OnBag,
    Study,
    StudyOptions,
    StudySource,
    check_out,
    read_study,
    write_study,
)

STUDY_NAMES: tuple[StudyName, ...] = get_args(StudyName)
PLAIN = StudyOptions()
RELEASES: dict[StudyName, Release] = {
    "rsna": rsna.RELEASE,
    "panda": panda.RELEASE,
    "camelyon16": camelyon16.RELEASE,  # the last, as it searches all subfolders
}
_EXPECTED = f"""\
a folder that probsa dataset wrote: dataset.json, labels.csv
the authors' processed CAMELYON16 or PANDA: splits.csv, patches_512/features/features_<encoder>/, \
labels/, patch_labels/ and coords/ in patches_512/
the authors' processed RSNA: splits.csv, features/features_<encoder>/, labels/, slice_labels/
RSNA's download: stage_2_train/*.dcm, stage_2_train.csv
PANDA's download: train.csv, train_images/, train_label_masks/
CAMELYON16's download: normal_001.tif, …, annotations/*.xml, reference.csv
a cohort: {table.NEEDED}"""


def open_study(
    name: StudyName,
    root: Path | str,
    *,
    out: Path | str,
    features: Path | str | None = None,
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
    root = Path(root)
    out = Path(out)
    features = optional_path(features)
    if not root.is_dir():
        raise InputError(f"there is no folder {root}")
    if (root / STUDY_RECORD).is_file():
        study = read_study(root)
        if study.name != name:
            raise InputError(f"{root} holds {study.name}, not {name}")
        return study
    check_out(out)
    release = None if name == "table" else RELEASES[name]
    if features is not None:
        folder = features
    elif release is not None:
        folder = release.processed_folder(root)
    else:
        folder = root / "features" if (root / "features").is_dir() else root
    bags = open_bags(folder, features=feature_set, cache_gb=0.0)
    processed = bags if isinstance(bags, TorchmilBags) else None
    if release is not None and features is None and processed is None:
        raise InputError(f"{bags.folder} holds no .npy files of a release: give it with --features")
    sets = {path: key for key, path in feature_folders(folder).items()}
    source = StudySource(
        root=root,
        bags=bags,
        options=options,
        features=folder if bags.folder in sets else bags.folder,
        feature_set=sets.get(bags.folder),
        release=processed if features is None else None,
    )
    draft = table.draft(source) if release is None else release.draft(source, on_bag)
    return write_study(name, draft, source, out=out, on_bag=on_bag)


def recognise_study(root: Path | str) -> StudyName:
    """Recognise the data set in a folder.

    Raises:
        InputError: the folder is none of the data sets; lists the files of each.
    """
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"there is no folder {root}")
    if (root / STUDY_RECORD).is_file():
        name = read_study(root).name
        return next(known for known in STUDY_NAMES if known == name)
    for name, release in RELEASES.items():
        if name == "camelyon16" and (root / LABELS).is_file():
            break
        if release.recognises(root):
            return name
    if (root / LABELS).is_file():
        return "table"
    contents = ", ".join(sorted(p.name for p in root.iterdir())[:8]) or "nothing"
    raise InputError(
        f"{root} is not a known data set; it holds {contents}. Expected one of\n{_EXPECTED}"
    )
