"""PANDA: 10,616 biopsies of the prostate from two hospitals, positive where ISUP grade > 0.

Parts are those of Silva-Rodríguez et al. 2021: 8,469 train and 353 validate (8,822 together are
the training part here, of which each run takes its own validation part), 1,794 test. The hospitals'
masks speak different languages, and about a fifth of the slides has near-duplicates.
"""

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np

from ...errors import BagError, InputError, SlideError, TableError
from ..labels import read_rows
from .processed import Processed, find_processed, need_processed
from .shares import mask_share
from .study import UNKNOWN, Draft, Marks, Source

CLASSES = ("benign", "cancer")
TOTAL, TRAINING, TEST = 10_616, 8_822, 1_794
CANCER = {"radboud": (3, 4, 5), "karolinska": (2,)}
"""Values of the masks that are cancer: Gleason patterns, or cancer as such."""
KNOWN = {"radboud": (0, 1, 2, 3, 4, 5), "karolinska": (0, 1, 2)}
"""Radboud: background, stroma, healthy epithelium, Gleason 3 to 5. Karolinska: background, benign,
cancer."""
MASKS = "train_label_masks"
_PARTS = {"train": "train", "val": "train", "validation": "train", "test": "test"}
_RAW = (
    "probsa patch ROOT/train_images --out WORK, probsa extract WORK --encoder NAME, then "
    "probsa dataset panda ROOT --features WORK --partition CSV --out DIR"
)
_PARTITION = (
    "partition_PANDA.csv (columns slide_name, Partition, isup_0 …): save data/partitions/"
    "partition_PANDA.xlsx of the repository jusiro/self-learning-wsi-prostate as CSV, and put it "
    "there or give --partition"
)


def recognised(root: Path) -> bool:
    """Whether a folder is PANDA's, raw or processed."""
    held = find_processed(root, kind="patch_labels")
    if held is not None:
        return any(_is_name(p.stem) for p in held.base.glob("labels/*.npy"))
    return (root / "train_images").is_dir() or (root / MASKS).is_dir()


def processed(root: Path) -> Processed:
    """The authors' folder.

    Raises:
        InputError: there is none, or a part is missing.
    """
    return need_processed(root, kind="patch_labels", release="PANDA", raw=_RAW)


def draft(source: Source) -> Draft:
    """What is known of the slides that have features.

    Raises:
        InputError: a file of the release is missing.
        TableError: a table is not what it should be.
    """
    held = source.processed
    raw = held is None
    made = Draft(
        release="the raw download" if raw else "the authors' processed folder", classes=CLASSES
    )
    grades, providers = _train(source)
    partition = _partition(source)
    parts = {k: part for k, (part, _) in partition.items()}
    clinical = {k: positive for k, (_, positive) in partition.items() if positive is not None}
    differ = [k for k, y in clinical.items() if grades.get(k, y) != y]
    if differ:
        made.lists["train.csv_and_partition_differ"] = differ
        made.notes.append(f"train.csv and the partition disagree on {len(differ)} labels.")
    clinical |= grades
    if not parts and held is not None:
        parts = held.parts()
    if not parts:
        raise InputError(f"the parts are not known: there is no {source.root}/{_PARTITION}")
    for bag in source.bags.names:
        label = clinical.get(bag)
        if bag not in parts:
            made.excluded[bag] = "its part is not known: the partition does not name it"
        elif label is None and held is None:
            made.excluded[bag] = "train.csv does not name it"
        else:
            if label is None and held is not None:
                made.derived.append(bag)
                label = held.label(bag)
            made.rows[bag] = {"label": label, "split": parts[bag]}
    _groups(source, made)
    _say(made, clinical or parts, providers)
    if held is not None:
        made.marks = lambda b: Marks(values=held.marks(b, size=source.bags.size(b)), stored=True)
    elif _has_masks(source, made):
        made.marks = partial(_marks, source, made, providers)
    return made


def read_train(path: Path) -> dict[str, tuple[int, str]]:
    """ISUP grade and hospital of each slide of train.csv.

    Raises:
        TableError: a column is missing, a grade is none of 0 to 5, or a hospital is not known.
    """
    found = {}
    for line, row in _columns(path, ("image_id", "isup_grade", "data_provider")):
        name, grade, provider = row
        if grade not in ("0", "1", "2", "3", "4", "5") or provider not in CANCER:
            raise TableError(
                f"{path}, line {line}: slide {name!r} has the ISUP grade {grade!r} and the "
                f"provider {provider!r}; expected 0 to 5, and {' or '.join(CANCER)}"
            )
        found[name] = (int(grade), provider)
    return found


def read_partition(path: Path) -> dict[str, tuple[str, int | None]]:
    """`train` or `test` of each slide, and whether it is positive (not isup_0) where it says so.

    Raises:
        TableError: a column is missing, or a part is none of train, val and test.
    """
    header, rows = read_rows(path)
    if not {"slide_name", "Partition"} <= set(header):
        raise TableError(
            f"{path} has the columns {', '.join(header[:6])}, …: expected slide_name and Partition "
            "as Silva-Rodríguez et al. publish them"
        )
    name, part = header.index("slide_name"), header.index("Partition")
    benign = header.index("isup_0") if "isup_0" in header else None
    found: dict[str, tuple[str, int | None]] = {}
    for line, row in rows:
        if row[part].lower() not in _PARTS:
            raise TableError(
                f"{path}, line {line}: slide {row[name]!r} is of the part {row[part]!r}, expected "
                "train, val or test"
            )
        positive = None if benign is None else int(float(row[benign]) == 0)
        found[row[name]] = (_PARTS[row[part].lower()], positive)
    return found


def _train(source: Source) -> tuple[dict[str, int], dict[str, str]]:
    """Label and hospital of each slide; train.csv is needed of the raw download alone."""
    path = source.options.labels or _first(source.root, "train.csv")
    if path is None:
        if source.processed is not None:
            return {}, {}
        raise InputError(
            f"{source.root / 'train.csv'} of PANDA's raw download is missing (image_id, "
            "data_provider, isup_grade, gleason_score): download it too, or give --labels"
        )
    rows = read_train(path)
    return {k: int(g > 0) for k, (g, _) in rows.items()}, {k: p for k, (_, p) in rows.items()}


def _partition(source: Source) -> dict[str, tuple[str, int | None]]:
    path = source.options.partition or _first(source.root, "*partition*.csv")
    return {} if path is None else read_partition(path)


def _first(root: Path, pattern: str) -> Path | None:
    found = [*sorted(root.glob(pattern)), *sorted(root.glob(f"dataset/{pattern}"))]
    return found[0] if found else None


def _groups(source: Source, made: Draft) -> None:
    """Near-duplicates are one group within a part; across parts the partition has its way."""
    path = source.options.duplicates or _first(source.root, "*duplicate*.csv")
    if path is None:
        made.notes.append(
            "Near-duplicate slides are not known here (a table image_id,group_id: --duplicates), "
            "so none are kept together."
        )
        return
    cluster = {name: group for _, (name, group) in _columns(path, ("image_id", "group_id"))}
    for bag, row in made.rows.items():
        row["group"] = f"duplicates-{cluster[bag]}-{row['split']}" if bag in cluster else bag
    trained = {cluster[b] for b, r in made.rows.items() if b in cluster and r["split"] == "train"}
    leaks = [
        b
        for b, r in made.rows.items()
        if r["split"] == "test" and b in cluster and cluster[b] in trained
    ]
    size = Counter(cluster.values())
    made.lists["test_with_a_near_duplicate_in_training"] = leaks
    made.notes.append(
        f"{sum(b in cluster for b in made.rows)} slides are in {len(size)} clusters of "
        f"near-duplicates, which stay together where validation parts are taken. The published "
        f"partition puts {len(leaks)} test slides apart from near-duplicates that train: figures "
        "of the test part are the better for it."
    )


def _say(made: Draft, known: dict[str, int] | dict[str, str], providers: dict[str, str]) -> None:
    made.missing = sorted(set(known) - set(made.rows) - set(made.excluded))
    made.strata = {"provider": {b: providers[b] for b in made.rows if b in providers}}
    parts = Counter(row["split"] for row in made.rows.values())
    made.notes.append(
        f"{len(made.rows):,} of {TOTAL:,} slides: {parts['train']:,} of {TRAINING:,} train "
        f"(the partition's train and val), {parts['test']:,} of {TEST:,} test."
    )


def _has_masks(source: Source, made: Draft) -> bool:
    folder = source.root / MASKS
    if not folder.is_dir():
        made.notes.append(f"There is no {folder}, so patches have no labels.")
        return False
    bare = [b for b in made.rows if not _mask(source, b).is_file()]
    made.lists["without_mask"] = bare
    made.lists["damaged_masks"] = []
    if bare:
        made.notes.append(
            f"{len(bare)} slides have no mask in {folder} ({', '.join(bare[:3])}): the labels of "
            "their patches are unknown."
        )
    return True


def _mask(source: Source, bag: str) -> Path:
    return source.root / MASKS / f"{bag}_mask.tiff"


def _marks(source: Source, made: Draft, providers: dict[str, str], bag: str) -> Marks:
    """From the hospital's mask, where there is one that can be read."""
    path, n = _mask(source, bag), source.bags.size(bag)
    if not path.is_file():
        return Marks(values=np.full(n, UNKNOWN))
    metadata, coords = source.bags.metadata(bag), source.bags.stored(bag).coords
    if coords is None or metadata.size_level0 is None:
        raise BagError(
            f"bag {bag!r} in {source.bags.folder} does not state where its patches are and how "
            "large, without which no mask can be laid on it: make the features with probsa extract"
        )
    provider = providers[bag]
    try:
        share, strange = mask_share(
            path,
            coords,
            side=metadata.size_level0,
            positive=CANCER[provider],
            known=KNOWN[provider],
            size=metadata.slide_size,
        )
    except SlideError as error:
        made.lists["damaged_masks"].append(bag)
        made.notes.append(f"The mask of {bag} cannot be used: {error}.")
        return Marks(values=np.full(n, UNKNOWN))
    if strange:
        raise InputError(
            f"{path} holds the values {', '.join(map(str, strange))}, but slide {bag!r} is of "
            f"{provider} by train.csv, whose masks hold {', '.join(map(str, KNOWN[provider]))}: "
            "the provider is wrong, or the mask of another kind"
        )
    return Marks(values=(share > source.options.share).astype(np.int64))


def _columns(path: Path, wanted: tuple[str, ...]) -> list[tuple[int, list[str]]]:
    """These columns of every row, with its line.

    Raises:
        TableError: one is not there.
    """
    header, rows = read_rows(path)
    for column in wanted:
        if column not in header:
            raise TableError(
                f"{path} has no column {column!r}: it has {', '.join(header)}, expected "
                f"{', '.join(wanted)}"
            )
    at = [header.index(c) for c in wanted]
    return [(line, [row[k] if k < len(row) else "" for k in at]) for line, row in rows]


def _is_name(name: str) -> bool:
    return len(name) == 32 and set(name) <= set("0123456789abcdef")
