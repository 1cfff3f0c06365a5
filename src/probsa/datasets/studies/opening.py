"""The data sets of the paper, and a cohort of one's own, each made ready by one call."""

from pathlib import Path
from typing import get_args

from ...errors import InputError
from ..bag_set import BagSet
from ..choices import StudyName
from ..opening import open_bags
from ..recognition import feature_folders
from . import camelyon16, panda, rsna, table
from .processed import Processed
from .study import RECORD, Draft, OnBag, Source, check_out, read_study, write_study
from .study import Study as Study
from .study import StudyOptions as StudyOptions

NAMES: tuple[StudyName, ...] = get_args(StudyName)
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
    """Makes a data set ready for training, and writes what was found to `out`.

    A folder that this wrote before is read as it is.

    Args:
        name: which data set.
        root: the raw download (then `features` are needed), the authors' processed folder, or the
            folder of a cohort.
        out: where labels.csv, instance_labels/ and dataset.json are written.
        features: what `probsa extract` or another tool made of the raw download.
        feature_set: which folder of features, where there are several.
        options: what does not lie in the folder under its own name.
        on_bag: called with (done, total) as labels of instances are made.

    Raises:
        InputError: a file of the release is missing; says which.
        BagError: a bag that cannot be used, or labels that are not as many as its instances.
        TableError: a table is not what it should be.
        OutputExists: `out` holds a labels.csv of somebody else's.
    """
    if not root.is_dir():
        raise InputError(f"there is no folder {root}")
    if (root / RECORD).is_file():
        return _made_before(name, root)
    check_out(out)
    processed = _processed(name, root) if features is None else None
    if processed is not None:
        folder = processed.base
    elif features is not None:
        folder = features
    else:
        folder = root / "features" if (root / "features").is_dir() else root
    bags = open_bags(folder, features=feature_set, cache_gb=0.0)
    given, chosen = _stated(folder, bags)
    source = Source(
        root=root,
        bags=bags,
        options=options,
        features=given,
        feature_set=chosen,
        processed=processed,
    )
    made = _draft(name, source, on_bag)
    return write_study(name, made, source, out=out, on_bag=on_bag)


def recognise_study(root: Path) -> StudyName:
    """Which data set a folder is.

    Raises:
        InputError: none; says what each consists of.
    """
    if not root.is_dir():
        raise InputError(f"there is no folder {root}")
    if (root / RECORD).is_file():
        name = read_study(root).name
        return next(n for n in NAMES if n == name)
    # the last looks at every name below the folder
    if rsna.recognised(root):
        return "rsna"
    if panda.recognised(root):
        return "panda"
    if table.recognised(root):
        return "table"
    if camelyon16.recognised(root):
        return "camelyon16"
    held = ", ".join(sorted(p.name for p in root.iterdir())[:8]) or "nothing"
    raise InputError(
        f"{root} is none of the data sets that are known; it holds {held}. Expected one of\n"
        f"{_EXPECTED}{table.NEEDED}"
    )


def _made_before(name: StudyName, root: Path) -> Study:
    held = read_study(root)
    if held.name != name:
        raise InputError(f"{root} holds {held.name}, not {name}")
    return held


def _processed(name: StudyName, root: Path) -> Processed | None:
    return None if name == "table" else _PUBLISHED[name].processed(root)


def _draft(name: StudyName, source: Source, on_bag: OnBag | None) -> Draft:
    if name == "rsna":
        return rsna.draft(source, on_bag)
    return table.draft(source) if name == "table" else _PUBLISHED[name].draft(source)


def _stated(given: Path, bags: BagSet) -> tuple[Path, str | None]:
    """The folder of features as a run is told of it: by name where there may be others."""
    chosen = next((k for k, f in feature_folders(given).items() if f == bags.folder), None)
    return (bags.folder, None) if chosen is None else (given, chosen)
