"""Miniature releases of data sets, with the official file names."""

import csv
import gzip
import json
from pathlib import Path

import numpy as np

from probsa.core import write_bag
from probsa.datasets import Study, open_bags

ASAP_XML = """<ASAP_Annotations><Annotations>
<Annotation Name="a" Type="Polygon" PartOfGroup="_0"><Coordinates>{}</Coordinates></Annotation>
</Annotations></ASAP_Annotations>"""
WIDTH = 3
SIDE = 512


def rows_of(path: Path) -> list[dict[str, str]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return list(csv.DictReader(text.splitlines()))


def asap_xml(*corners: tuple[int, int]) -> str:
    return ASAP_XML.format("".join(f'<Coordinate X="{x}" Y="{y}"/>' for x, y in corners))


def lattice(columns: int, rows: int, *, at: tuple[int, int] = (0, 0), side: int = SIDE):
    """Return the corners of a block of patches, row by row."""
    y, x = np.divmod(np.arange(columns * rows), columns)
    return np.stack([x, y], 1) * side + np.array(at)


def write_slide(folder: Path, name: str, coords: np.ndarray, *, side: int = SIDE, **more) -> None:
    """Write a bag of features as `probsa extract` does."""
    attributes = {"patch_size": side, "patch_size_level0": side, "overlap": 0, **more}
    write_bag(
        folder / f"{name}.h5",
        features=np.random.default_rng(len(name)).normal(size=(len(coords), WIDTH)),
        coords=coords,
        kind="slide",
        attributes=attributes,
    )


def write_processed(
    base: Path,
    bags: dict[str, tuple[int, np.ndarray]],
    *,
    kind: str = "patch_labels",
    encoder: str = "features_UNI",
) -> Path:
    """Write bags, given as (label, instance labels), in the layout of the authors' folders."""
    folders = (
        "labels",
        kind,
        f"features/{encoder}",
        *(["coords"] if kind == "patch_labels" else []),
    )
    for folder in folders:
        (base / folder).mkdir(parents=True)
    for name, (label, marks) in bags.items():
        n = len(marks)
        np.save(base / "labels" / f"{name}.npy", np.array([label]))
        np.save(base / kind / f"{name}.npy", np.asarray(marks, np.int64))
        np.save(base / "features" / encoder / f"{name}.npy", np.ones((n, WIDTH), np.float32))
        if kind == "patch_labels":
            np.save(base / "coords" / f"{name}.npy", lattice(n, 1))
    return base


def write_splits(path: Path, parts: dict[str, str]) -> None:
    lines = ["bag_name,split", *(f"{b},{p}" for b, p in parts.items())]
    path.write_text("\n".join(lines) + "\n")


def marks(study: Study) -> dict[str, list[int]]:
    """Return the labels of the instances of each bag of a study."""
    labels = {"instance_labels": study.instance_labels}
    bags = open_bags(study.features, features=study.feature_set, **labels)
    return {b: bags.stored(b).instance_labels.tolist() for b in bags.names}


def record(study: Study) -> dict:
    """Return what dataset.json says of a study."""
    return json.loads((study.folder / "dataset.json").read_text())
