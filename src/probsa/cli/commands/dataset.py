"""probsa dataset."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from ...datasets import StudyName
from ...errors import InputError
from ..command import Answer, Flag
from ..flags import Classes, Csv, Dir, FeatureSet, InputDir, Name

DOWNLOADED = "download"
"""Subfolder of --out that --fetch downloads to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyFlags:
    """What the data sets have beside features.

    Args:
        share: A patch is positive if more than this fraction of its pixels is annotated.
        labels: Labels: reference.csv, train.csv, stage_2_train.csv, or a table of your own.

    Files of a single data set:
        partition: panda: parts of the slides (columns slide_name,Partition).
        grades: panda: label slides with their ISUP grade, 0 to 5, instead of benign or cancer.
        duplicates: panda: near-duplicate slides (columns image_id,group_id).
        test_scans: rsna: slices of the test scans (columns bag_name,instance_name).
        train_scans: rsna: slices of the training scans. Default: those of all other scans.
        instance_labels: table: folder with one <bag>.npy per bag, one whole number per instance.
        classes: table: names of the classes in the order of their indices, if the labels are names.
    """

    share: Annotated[float, Flag("FRACTION")] = 0.5
    labels: Csv | None = None
    partition: Csv | None = None
    grades: bool = False
    duplicates: Csv | None = None
    test_scans: Csv | None = None
    train_scans: Csv | None = None
    instance_labels: InputDir | None = None
    classes: Classes | None = None


def run(
    name: StudyName,
    root: Annotated[Path, Flag(holds="folder")] | None = None,
    *,
    out: Dir,
    features: InputDir | None = None,
    feature_set: FeatureSet | None = None,
    flags: StudyFlags,
    fetch: Annotated[str, Flag("REPO")] | None = None,
    revision: Name | None = None,
) -> Answer:
    """Prepare a data set for training: its labels, its parts and the labels of its instances.

    The data set is its raw download together with features made from it, or the folder with
    features that its authors published. OUT/dataset.json lists what was left out or corrected,
    and why.

    Args:
        name: Name of the data set; table for a cohort of your own.
        root: Folder of the data set; for table, --features and --labels do as well.
        out: Folder to write to.
        features: Features made from the raw download: the work folder of probsa extract.
        fetch: Download the authors' folder from this repository of the Hugging Face Hub.
        revision: Branch, tag or commit of that repository.
    """
    if flags.grades and name != "panda":
        raise InputError(f"--grades is for panda, whose slides have ISUP grades, not {name}")
    if fetch is not None:
        if root is not None or features is not None or name == "table":
            raise InputError(
                "--fetch downloads the authors' processed folder of rsna, panda or camelyon16: "
                "give no folder and no --features with it"
            )
        from ...datasets import fetch_release

        root = fetch_release(fetch, out / DOWNLOADED, feature_set=feature_set, revision=revision)
    if root is None and name == "table" and flags.labels is not None:
        root = features  # a cohort of one's own is its features and its labels
    if root is None:
        raise InputError(
            "no folder is given: add it after the name, or --fetch REPO to download one"
        )
    from ...datasets import StudyOptions, open_study
    from ..terminal import Counter

    classes = None if flags.classes is None else tuple(flags.classes)
    options: dict[str, Any] = asdict(flags) | {"classes": classes}
    with Counter("reading") as count:
        study = open_study(
            name,
            root,
            out=out,
            features=features,
            feature_set=feature_set,
            options=StudyOptions(**options),
            on_bag=count,
        )
    lines = [f"{study.name}: {study.labels}"]
    lines += [f"  {name:<38} {count:>9,}" for name, count in study.counts.items()]
    lines += [f"note: {note}" for note in study.notes]
    folder_of_features = f" ({study.feature_set})" if study.feature_set else ""
    lines.append(f"features: {study.features}{folder_of_features}")
    if study.instance_labels:
        lines.append(f"instance labels: {study.instance_labels}")
    lines.append(f"left out or corrected, and why: {study.folder / 'dataset.json'}")
    return Answer(study.to_dict(), "\n".join(lines))
