"""One slide as each tool would leave it, from the lists of fields of their formats.

Raw h5py, NumPy and torch: never our own writers. Traps of the formats are in them.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import torch

WIDTH = 6
MPP = {20: 0.5054, 40: 0.2527}
"""Of a scan, by its magnification."""
TILE_UM, TILE_PX = 256.0, 224
"""STAMP's."""


@dataclass(frozen=True)
class Slide:
    """A lattice of 8 × 10 patches with holes, row by row; about 0.5 µm per pixel of 512."""

    name: str
    cells: np.ndarray
    features: np.ndarray
    """float32, but exact in float16: whatever a tool stores them in, they are the same."""
    labels: np.ndarray
    scan: int

    @property
    def step(self) -> int:
        """Level-0 pixels between patches."""
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
        """Level-0 pixels between STAMP's tiles, which it rounds up."""
        return math.ceil(TILE_UM / self.mpp)

    @property
    def order(self) -> np.ndarray:
        """The rows in which STAMP's threads end."""
        return np.random.default_rng(len(self.cells)).permutation(len(self.cells))


def slide(name: str = "s1", *, scan: int = 20, seed: int = 0) -> Slide:
    g = np.random.default_rng(seed)
    y, x = np.divmod(np.arange(80), 8)
    there = g.random(80) > 0.25
    cells = np.stack([x, y], axis=1)[there]
    features = g.normal(size=(len(cells), WIDTH)).astype(np.float16).astype(np.float32)
    labels = (cells[:, 0] > 5).astype(np.int64)
    return Slide(name=name, cells=cells, features=features, labels=labels, scan=scan)


def clam(root: Path, *slides: Slide, h5: bool = True, patches: bool = True) -> Path:
    """`patches` with attributes; `h5_files` without any; `pt_files`. A 40x scan was cut at level 1,
    which is 4 times smaller."""
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
    """Pixels beside the corners, and the corners at the level of the patches, which is 4 times
    smaller: in `patches` and in the features' file."""
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
    """The job folder; 20x patches of a 40x scan lie 1024 level-0 pixels apart, not 512."""
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
    """A slide without tissue."""
    path = _new(root / "20x_512px_0px_overlap" / f"features_{encoder}" / f"{name}.h5")
    with h5py.File(path, "w") as f:
        f["features"] = np.zeros((0,) if flat else (0, WIDTH), np.float32)
        f["features"].attrs["encoder"] = encoder
        f["coords"] = np.zeros((0, 2), np.int64)


def stamp(root: Path, *slides: Slide, version: str = "2.4.0") -> Path:
    """Corners in µm, tiles as far apart as a tile rounded up to pixels (256.24 µm), rows in the
    order in which threads ended. Version 1 knew no µm; 2.0 said `tile_size`."""
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
    """Centres, not corners. With `stride` 2 every tile is twice as wide as they lie apart."""
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
