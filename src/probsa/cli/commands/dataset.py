"""probsa dataset: a published data set, or a cohort, made ready for training."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ...errors import InputError
from ._shared import Parser, write_json

if TYPE_CHECKING:
    from ...datasets import Study

DOWNLOADED = "download"
"""Folder of --out that --fetch downloads to."""


def run(arguments: list[str]) -> int:
    """probsa dataset."""
    from ...datasets import StudyName

    a = _parser(get_args(StudyName)).parse_args(arguments)
    from ...datasets import StudyOptions, open_study
    from ..terminal import OUT, counting

    root = _root(a)
    options = StudyOptions(
        share=a.share,
        labels=a.labels,
        partition=a.partition,
        duplicates=a.duplicates,
        test_scans=a.test_scans,
        train_scans=a.train_scans,
        instance_labels=a.instance_labels,
        classes=None if a.classes is None else tuple(a.classes),
    )
    with counting("reading") as count:
        study = open_study(
            a.name,
            root,
            out=a.out,
            features=a.features,
            feature_set=a.feature_set,
            options=options,
            on_bag=count,
        )
    if a.json:
        write_json(study.to_dict())
        return 0
    for line in _shown(study):
        OUT.print(line, markup=False, soft_wrap=True)
    return 0


def _parser(names: tuple[str, ...]) -> Parser:
    parser = Parser(
        prog="probsa dataset",
        description="Labels, parts and labels of instances of a data set, from its raw download "
        "with features made of it, or from the authors' processed folder. What was left out or put "
        "right, and why, stands in OUT/dataset.json.",
    )
    add = parser.add_argument
    add("name", choices=names, help="which data set; table: a cohort of your own")
    add("root", type=Path, nargs="?", help="folder of the data set")
    add("--out", type=Path, required=True, help="folder to write to")
    add("--features", type=Path, help="features of the raw download: probsa extract's work folder")
    add("--feature-set", help="which folder of features, where there are several")
    add(
        "--share", type=float, default=0.5,
        help="a patch is positive where more than this share of its pixels is annotated",
    )  # fmt: skip
    add("--labels", type=Path, help="reference.csv, train.csv, stage_2_train.csv or a table")
    _add_beside(parser)
    add("--fetch", metavar="REPO", help="download the processed folder from the Hugging Face Hub")
    add("--revision", help="of that repository: a branch, a tag or a commit")
    add("--json", action="store_true", help="one JSON document")
    return parser


def _add_beside(parser: Parser) -> None:
    """What a single data set has beside its folder."""
    add = parser.add_argument
    add("--partition", type=Path, help="panda: parts of the slides (slide_name,Partition)")
    add("--duplicates", type=Path, help="panda: near-duplicate slides (image_id,group_id)")
    add("--test-scans", type=Path, help="rsna: slices of the test scans (bag_name,instance_name)")
    add("--train-scans", type=Path, help="rsna: slices of the training scans; none: all others")
    add("--instance-labels", type=Path, help="table: folder of <bag>.npy, a number an instance")
    add("--classes", nargs="+", help="table: class names in order, where labels are names")


def _root(a: argparse.Namespace) -> Path:
    if a.fetch is None:
        if a.root is None:
            raise InputError("which folder? Give it after the name, or --fetch REPO to download it")
        return a.root
    if a.root is not None or a.features is not None or a.name == "table":
        raise InputError(
            "--fetch downloads the authors' processed folder of rsna, panda or camelyon16: give no "
            "folder and no --features with it"
        )
    from ...datasets import fetch

    into = a.out / DOWNLOADED
    return fetch(a.fetch, into, feature_set=a.feature_set, revision=a.revision)


def _shown(study: "Study") -> list[str]:
    """The record in lines."""
    lines = [f"{study.name}: {study.labels}"]
    lines += [f"  {what:<38} {count:>9,}" for what, count in study.counts.items()]
    lines += [f"note: {note}" for note in study.notes]
    set_ = "" if study.feature_set is None else f" ({study.feature_set})"
    lines += [f"features: {study.features}{set_}"]
    if study.instance_labels is not None:
        lines.append(f"labels of instances: {study.instance_labels}")
    return [*lines, f"left out, put right, and why: {study.folder / 'dataset.json'}"]
