"""Write one slide in the format of each tool, including the pitfalls of the formats.

Uses h5py, NumPy and torch directly, not the writers under test.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import torch

from probsa import Bag

WIDTH = 6
MPP = {20: 0.5054, 40: 0.2527}
"""µm per pixel of a scan, by magnification."""
TILE_UM = 256.0
TILE_PX = 224
"""Side of STAMP's tiles."""


@dataclass(frozen=True)
class Slide:
    """A lattice of 8 × 10 patches with holes, row by row; about 0.5 µm per pixel of 512."""

    name: str
    cells: np.ndarray
    features: np.ndarray
    """float32, but exactly representable in float16, which some tools store."""
    labels: np.ndarray
    scan: int

    @property
    def step(self) -> int:
        """The stride in level-0 pixels."""
        return 512 * self.scan // 20

    @property
    def corners(self) -> np.ndarray:
        return self.cells * self.step + np.array([3, 5]) * self.scan

    @property
    def mpp(self) -> float:
        return MPP[self.scan]

    @property
    def size(self) -> tuple[int, int]:
        return 9 * self.step, 11 * self.step

    @property
    def tile_px(self) -> int:
        """The stride of STAMP's tiles in level-0 pixels, which it rounds up."""
        return math.ceil(TILE_UM / self.mpp)

    @property
    def order(self) -> np.ndarray:
        """A permutation of the rows, as STAMP's threads finish in random order."""
        return np.random.default_rng(len(self.cells)).permutation(len(self.cells))


def slide(name: str = "s1", *, scan: int = 20, seed: int = 0) -> Slide:
    g = np.random.default_rng(seed)
    y, x = np.divmod(np.arange(80), 8)
    has_patch = g.random(80) > 0.25
    cells = np.stack([x, y], axis=1)[has_patch]
    features = g.normal(size=(len(cells), WIDTH)).astype(np.float16).astype(np.float32)
    labels = (cells[:, 0] > 5).astype(np.int64)
    return Slide(name=name, cells=cells, features=features, labels=labels, scan=scan)


def clam(root: Path, *slides: Slide, h5: bool = True, patches: bool = True) -> Path:
    """Write `patches` with attributes, `h5_files` without any, and `pt_files`. A 40x scan is cut at
    level 1, with a downsample of 4."""
    for s in slides:
        down = 4 if s.scan == 40 else 1
        if patches:
            with h5py.File(_new(root / "patches" / f"{s.name}.h5"), "w") as f:
                d = f.create_dataset(
                    "coords", data=s.corners.astype(np.int64), chunks=(1, 2), maxshape=(None, 2)
                )
                d.attrs["patch_size"] = np.int64(s.step // down)
                d.attrs["patch_level"] = np.int64(down > 1)
                d.attrs["downsample"] = np.array([down, down], np.float64)
                d.attrs["level_dim"] = np.array([n // down for n in s.size])
                d.attrs["downsampled_level_dim"] = np.array([n // down for n in s.size])
                d.attrs["name"], d.attrs["save_path"] = s.name, str(root / "patches")
        if h5:
            with h5py.File(_new(root / "h5_files" / f"{s.name}.h5"), "w") as f:
                for key, rows in (("features", s.features), ("coords", s.corners.astype(np.int32))):
                    width = rows.shape[1]
                    f.create_dataset(key, data=rows, chunks=(32, width), maxshape=(None, width))
        torch.save(torch.from_numpy(s.features), _new(root / "pt_files" / f"{s.name}.pt"))
    return root


def clam_first_script(root: Path, s: Slide) -> Path:
    """Write pixels beside the corners, and, in `patches` and in the feature file, corners at the
    level of the patches, with a downsample of 4."""
    corners = (s.corners // 4).astype(np.int32)
    with h5py.File(_new(root / "patches" / f"{s.name}.h5"), "w") as f:
        side = s.step // 4
        d = f.create_dataset("imgs", shape=(len(s.cells), side, side, 3), dtype=np.uint8)
        d.attrs["patch_level"], d.attrs["wsi_name"] = 1, s.name
        d.attrs["downsample"] = np.array([4.0, 4.0])
        f["coords"] = corners
    with h5py.File(_new(root / "h5_files" / f"{s.name}.h5"), "w") as f:
        f["features"], f["coords"] = s.features, corners
    return root


def trident(root: Path, *slides: Slide, encoder: str = "uni_v1", dtype: str = "float16") -> Path:
    """Write the job folder; 20x patches of a 40x scan have a stride of 1024 level-0 pixels."""
    job = root / "20x_512px_0px_overlap"
    for s in slides:
        attributes = {
            "patch_size": 512,
            "patch_size_level0": s.step,
            "level0_magnification": s.scan,
            "target_magnification": 20,
            "overlap": 0,
            "name": s.name,
            "savetodir": str(job),
            "level0_width": "None",
            "level0_height": "None",
        }
        with h5py.File(_new(job / "patches" / f"{s.name}_patches.h5"), "w") as f:
            f["coords"] = s.corners.astype(np.int64)
            f["coords"].attrs.update(attributes)
        with h5py.File(_new(job / f"features_{encoder}" / f"{s.name}.h5"), "w") as f:
            d = f.create_dataset("features", data=s.features.astype(dtype), chunks=(1, WIDTH))
            d.attrs["name"], d.attrs["savetodir"], d.attrs["encoder"] = s.name, str(job), encoder
            f["coords"] = s.corners.astype(np.int64)
            f["coords"].attrs.update(attributes)
    return root


def trident_empty(root: Path, name: str, *, encoder: str = "uni_v1", flat: bool = False) -> None:
    """Add a slide without tissue."""
    path = _new(root / "20x_512px_0px_overlap" / f"features_{encoder}" / f"{name}.h5")
    with h5py.File(path, "w") as f:
        f["features"] = np.zeros((0,) if flat else (0, WIDTH), np.float32)
        f["features"].attrs["encoder"] = encoder
        f["coords"] = np.zeros((0, 2), np.int64)


def stamp(root: Path, *slides: Slide, version: str = "2.4.0") -> Path:
    """Write corners in µm, with the tile size rounded up to pixels (256.24 µm) as stride, rows in
    random order. Version 1 has no µm; version 2.0 names the attribute `tile_size`."""
    folder = root / "uni-1a2b3c4d" / "cohort"
    for s in slides:
        um = s.cells * s.tile_px * s.mpp
        with h5py.File(_new(folder / f"{s.name}.h5"), "w") as f:
            f["feats"] = s.features[s.order].astype(np.float16)
            f["coords"] = um[s.order].astype(np.float32)
            f.attrs["extractor"] = "mahmood-uni"
            if version.startswith("1"):
                f["coords"][...] = s.cells[s.order].astype(np.float32) * TILE_PX
                continue
            f.attrs["stamp_version"], f.attrs["unit"] = version, "um"
            f.attrs["code_hash"], f.attrs["tile_size_px"] = "1a2b3c4d", TILE_PX
            if version.startswith("2.0"):
                f.attrs["tile_size"] = TILE_UM
            else:
                f.attrs["tile_size_um"], f.attrs["feat_type"] = TILE_UM, "tile"
    return root


def slideflow(root: Path, *slides: Slide, zipped: bool = True, stride: int = 1) -> Path:
    """Write centres, not corners. With `stride` 2, tiles are twice as wide as their distance."""
    for s in slides:
        torch.save(torch.from_numpy(s.features), _new(root / f"{s.name}.pt"))
        centres = s.corners + s.step * stride // 2
        if zipped:
            np.savez(root / f"{s.name}.index.npz", centres)
        else:
            np.save(root / f"{s.name}.index.npy", centres)
    config = {
        "extractor": {"class": "UNIFeatures", "kwargs": {}},
        "normalizer": None,
        "num_features": WIDTH,
        "tile_px": 299,
        "tile_um": slides[0].step * stride * slides[0].mpp,
    }
    (root / "bags_config.json").write_text(json.dumps(config))
    return root


def torchmil(root: Path, *slides: Slide, encoder: str = "UNI") -> Path:
    patches = root / f"patches_{slides[0].step}"
    for k, s in enumerate(slides):
        parts = {
            f"features/features_{encoder}": s.features,
            "labels": np.array([k % 2]),
            "patch_labels": s.labels[:, None],
            "coords": s.corners.astype(np.int64),
        }
        for folder, values in parts.items():
            np.save(_new(patches / folder / f"{s.name}.npy"), values)
    lines = [f"{s.name},{'train' if k else 'test'}" for k, s in enumerate(slides)]
    (root / "splits.csv").write_text("\n".join(["bag_name,split", *lines]) + "\n")
    return root


def edges_by_cell(bag: Bag, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted edges of a bag in the row order of the slide, and their weights."""
    edges = np.sort(rows[bag.edges.numpy()], axis=0)
    order = np.lexsort(edges[::-1])
    return edges[:, order], bag.weights.numpy()[order]


def expected_edges(s: Slide) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of adjacent cells and their inverse weights, by comparing all pairs."""
    distance = np.abs(s.cells[:, None] - s.cells[None]).max(-1)
    edges = np.stack(np.nonzero(np.triu(distance == 1)))
    d = np.linalg.norm(s.features[edges[0]] - s.features[edges[1]], axis=1)
    return edges, 1 / d


def row_order(tool: str, s: Slide) -> np.ndarray:
    """Return the slide's rows in the order in which a tool writes them."""
    return s.order if tool == "stamp" else np.arange(len(s.cells))


TOOLS = {
    "clam": clam,
    "trident": trident,
    "stamp": stamp,
    "slideflow": slideflow,
    "torchmil": torchmil,
}


def _new(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
