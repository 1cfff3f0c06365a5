"""probsa dataset: prepare a published data set, or a cohort of your own, for training."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from jsonargparse import ArgumentParser, Namespace

from ...datasets import StudyName
from ...errors import InputError
from ._shared import add_json_flag, command_parser, parse_arguments, write_json

if TYPE_CHECKING:
    from ...datasets import Study

LOCALMIL = "localmil"
DOWNLOADED = "download"
"""Subfolder of --out that --fetch downloads to."""
DESCRIPTION = """\
Prepare a data set for training: its labels, its parts and the labels of its instances.

The data set is its raw download together with features made from it, or the folder with
features that its authors published. OUT/dataset.json lists what was left out or corrected,
and why."""


def parser() -> ArgumentParser:
    """Return the parser of `probsa dataset`."""
    parser = command_parser("dataset", DESCRIPTION)
    add = parser.add_argument
    add(
        "name", choices=(*get_args(StudyName), LOCALMIL),
        help="Name of the data set; table for a cohort of your own; localmil for sets with "
        "instance labels, which recipes/localmil.yaml compares models on.",
    )  # fmt: skip
    add("root", type=Path, nargs="?", help="Folder of the data set.")
    add("--out", type=Path, required=True, metavar="DIR", help="Folder to write to.")
    add(
        "--features", type=Path, metavar="DIR",
        help="Features made from the raw download: the work folder of probsa extract.",
    )  # fmt: skip
    add("--feature-set", metavar="NAME", help="Folder of features to use if there are several.")
    add(
        "--share", type=float, default=0.5, metavar="FRACTION",
        help="A patch is positive if more than this fraction of its pixels is annotated. "
        "Default: 0.5.",
    )  # fmt: skip
    add(
        "--labels", type=Path, metavar="CSV",
        help="Labels: reference.csv, train.csv, stage_2_train.csv, or a table of your own.",
    )  # fmt: skip
    _add_flags_of_single_sets(parser)
    localmil = parser.add_argument_group("localmil").add_argument
    localmil("--data", type=Path, metavar="DIR", help="Folder of the sets, instead of the root.")
    localmil("--sets", nargs="+", metavar="NAME", help="Sets to prepare. Default: all.")
    add(
        "--fetch", metavar="REPO",
        help="Download the authors' folder from this repository of the Hugging Face Hub.",
    )  # fmt: skip
    add("--revision", metavar="NAME", help="Branch, tag or commit of that repository.")
    add_json_flag(parser)
    return parser


def _add_flags_of_single_sets(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("files of a single data set").add_argument
    add(
        "--partition", type=Path, metavar="CSV",
        help="panda: parts of the slides (columns slide_name,Partition).",
    )  # fmt: skip
    add(
        "--grades", action="store_true",
        help="panda: label slides with their ISUP grade, 0 to 5, instead of benign or cancer.",
    )  # fmt: skip
    add(
        "--duplicates", type=Path, metavar="CSV",
        help="panda: near-duplicate slides (columns image_id,group_id).",
    )  # fmt: skip
    add(
        "--test-scans", type=Path, metavar="CSV",
        help="rsna: slices of the test scans (columns bag_name,instance_name).",
    )  # fmt: skip
    add(
        "--train-scans", type=Path, metavar="CSV",
        help="rsna: slices of the training scans. Default: those of all other scans.",
    )  # fmt: skip
    add(
        "--instance-labels", type=Path, metavar="DIR",
        help="table: folder with one <bag>.npy per bag, one whole number per instance.",
    )  # fmt: skip
    add(
        "--classes", nargs="+", metavar="NAME",
        help="table: names of the classes in the order of their indices, if the labels are names.",
    )  # fmt: skip


def run(arguments: Sequence[str]) -> int:
    """Run `probsa dataset`."""
    args = parse_arguments(parser(), arguments)
    if args.name == LOCALMIL:
        return _localmil(args)
    if args.data is not None or args.sets is not None:
        raise InputError(f"--data and --sets are for localmil: {args.name} takes a folder after it")
    from ...datasets import StudyOptions, open_study
    from ..terminal import OUT, counting

    if args.grades and args.name != "panda":
        raise InputError(f"--grades is for panda, whose slides have ISUP grades, not {args.name}")
    root = _root(args)
    options = StudyOptions(
        share=args.share,
        labels=args.labels,
        grades=args.grades,
        partition=args.partition,
        duplicates=args.duplicates,
        test_scans=args.test_scans,
        train_scans=args.train_scans,
        instance_labels=args.instance_labels,
        classes=None if args.classes is None else tuple(args.classes),
    )
    with counting("reading") as count:
        study = open_study(
            args.name,
            root,
            out=args.out,
            features=args.features,
            feature_set=args.feature_set,
            options=options,
            on_bag=count,
        )
    if args.json:
        write_json(study.to_dict())
        return 0
    for line in _report_lines(study):
        OUT.print(line, markup=False, soft_wrap=True)
    return 0


def _localmil(args: Namespace) -> int:
    """Prepare the sets of LocalMIL."""
    from ...core import counted
    from ...datasets import prepare_localmil
    from ..terminal import ERR, OUT

    root = args.data or args.root
    if root is None or (args.data and args.root):
        raise InputError("give the folder of the sets once: probsa dataset localmil --data DIR")
    cards = prepare_localmil(
        root,
        args.out,
        sets=args.sets,
        on_set=lambda name: ERR.print(f"reading {name}", markup=False),
    )
    if args.json:
        write_json([card.to_dict() for card in cards])
        return 0
    for card in cards:
        if card.groups is None:
            groups = f"in {card.folds} folds, groups not known (labels.csv has no column 'group')"
        else:
            groups = f"of {counted(card.groups, 'group')} in {card.folds} folds"
        text = (
            f"{card.name}: {card.bags} bags ({card.positive_bags} positive) {groups}; "
            f"{card.instances:,} instances "
            f"({card.positive_instances:,} positive) of {card.features} features; "
            f"{counted(card.labelled_bags, 'bag')} with instance labels; graph: "
            f"{card.description.graph}"
        )
        OUT.print(text, markup=False, soft_wrap=True)
    OUT.print(
        f"next: probsa benchmark recipes/localmil.yaml --data {args.out}",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    return 0


def _root(args: Namespace) -> Path:
    """Return the folder of the data set, downloaded first with --fetch."""
    if args.fetch is None:
        if args.root is None:
            raise InputError(
                "no folder is given: add it after the name, or --fetch REPO to download one"
            )
        return args.root
    if args.root is not None or args.features is not None or args.name == "table":
        raise InputError(
            "--fetch downloads the authors' processed folder of rsna, panda or camelyon16: give no "
            "folder and no --features with it"
        )
    from ...datasets import fetch_release

    folder = args.out / DOWNLOADED
    return fetch_release(args.fetch, folder, feature_set=args.feature_set, revision=args.revision)


def _report_lines(study: "Study") -> list[str]:
    lines = [f"{study.name}: {study.labels}"]
    lines += [f"  {name:<38} {count:>9,}" for name, count in study.counts.items()]
    lines += [f"note: {note}" for note in study.notes]
    feature_set = "" if study.feature_set is None else f" ({study.feature_set})"
    lines += [f"features: {study.features}{feature_set}"]
    if study.instance_labels is not None:
        lines.append(f"instance labels: {study.instance_labels}")
    return [*lines, f"left out or corrected, and why: {study.folder / 'dataset.json'}"]
