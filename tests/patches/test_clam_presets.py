"""CLAM's presets against what CLAM itself wrote: contours, holes and coordinates, in its order."""

import csv
import hashlib
import importlib.util
import json

import cv2
import numpy as np
import pytest
from support.array_slide import ArraySlide, VastSlide, painted

from probsa.errors import InputError, SlideError, UnknownName
from probsa.patches import TissueOptions, cut, find_tissue, settings
from probsa.patches.polygons import locate, ring_area
from probsa.slides import open_slide

NAMES = {
    "default": "clam",
    "bwh_biopsy": "clam-biopsy",
    "bwh_resection": "clam-resection",
    "tcga": "clam-tcga",
}
# the golden runs' own names of what they changed in CLAM's defaults
CHANGES = {
    "x": {},
    "at1": {"min_area": 1.0, "min_hole": 1.0},
    "at0": {"min_area": 0.0, "min_hole": 0.0},
    "otsu": {"method": "otsu"},
    "hard": {"rule": "four_pt_hard"},
    "center": {"rule": "center"},
    "basic": {"rule": "basic"},
    "nopad": {"padding": False},
    "plevel1": {"level": 1},
    "seg0": {"mask_level": 0},
}
REAL = ("CMU-1-Small-Region", "CMU-1-Small-Region_derived_pyramid")
PAINTED = {"synth_compact": "compact", "synth_fragmented": "fragmented"}


def settings_of(run, *, size, step):
    """Return the settings of a golden run."""
    if run in NAMES:
        return settings(NAMES[run], size=size, overlap=size - step)
    changes = {}
    for word in run.split("_"):
        changes |= CHANGES[word]
    return settings("clam", size=size, overlap=size - step, **changes)


class Rows:
    """numpy, whose arange of `count` begins at `first`: a painter of whole images paints a band."""

    def __init__(self, first, count):
        self.first = first
        self.count = count

    def __getattr__(self, name):
        return getattr(np, name)

    def arange(self, n, dtype):
        return np.arange(n, dtype=dtype) + (self.first if n == self.count else 0)


def paint_in_bands(make, *, rows=96):
    """Paint slides band by band; to paint one at once takes 3 GB, and much more time."""
    paint_whole = make.paint

    def paint(width, height, *shapes):
        bands = []
        for first in range(0, height, rows):
            make.np = Rows(first, min(rows, height - first))
            bands.append(paint_whole(width, make.np.count, *shapes))
        make.np = np
        return np.concatenate(bands)

    make.paint = paint


@pytest.fixture(scope="session")
def golden_slides(shared_golden, shared_data):
    """Return the slides of the golden runs by name; the painted ones are made anew and checked."""
    folder = shared_golden / "patches"
    spec = importlib.util.spec_from_file_location("make_slides", folder / "make_slides.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    paint_in_bands(make)
    sums = json.loads((folder / "slides_sha256.json").read_text())
    slides = {}
    for name, function in PAINTED.items():
        image, steps = getattr(make, function)()
        levels = [image]
        for halvings in steps:
            image = levels[-1]
            for _ in range(halvings):
                image = make.halve(image)
            levels.append(image)
        digests = [hashlib.sha256(level.tobytes()).hexdigest() for level in levels]
        assert digests == [level["sha256"] for level in sums[name]]
        slides[name] = ArraySlide(*levels, mpp=None, name=name)
    for name, ending in zip(REAL, (".svs", ".tiff"), strict=True):
        slides[name] = open_slide(shared_data / "wsi" / f"{name}{ending}")
    yield slides
    for name in REAL:
        slides[name].close()


def joined(rings):
    return np.concatenate([np.zeros((0, 2), np.int32), *rings])


def assert_same_tissue(tissue, golden, run):
    outlines = [p.outer for p in tissue.polygons]
    holes = [hole for p in tissue.polygons for hole in p.holes]
    parents = [k for k, p in enumerate(tissue.polygons) for _ in p.holes]
    np.testing.assert_array_equal(joined(outlines), golden[f"{run}__contours_xy"])
    np.testing.assert_array_equal(joined(holes), golden[f"{run}__holes_xy"])
    for kind, rings in (("contours", outlines), ("holes", holes)):
        offsets = np.cumsum([0, *map(len, rings)])
        np.testing.assert_array_equal(offsets, golden[f"{run}__{kind}_off"])
    assert parents == golden[f"{run}__holes_parent"].tolist()
    assert {ring.dtype for ring in outlines} <= {np.dtype(np.int32)}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REAL, *PAINTED])
def test_every_run_gives_the_contours_and_the_coordinates_of_clam(
    name, golden_slides, shared_golden
):
    with (shared_golden / "patches" / "runs.csv").open(newline="") as f:
        runs = [row for row in csv.DictReader(f) if row["slide"] == name]
    slide = golden_slides[name]
    golden = np.load(shared_golden / "patches" / f"{name}.npz")
    assert len(runs) == 22
    checked_runs = 0
    patches = 0
    tissues = {}  # patch sizes share their tissue
    for row in runs:
        run = row["preset"]
        size = int(row["patch"])
        step = int(row["step"])
        options = settings_of(run, size=size, step=step)
        if options.tissue not in tissues:
            tissues[options.tissue] = find_tissue(slide, options.tissue)
        tissue = tissues[options.tissue]
        assert_same_tissue(tissue, golden, run)
        if row["status"] == "failed":  # there is no level 1
            with pytest.raises(SlideError):
                cut(slide, tissue, options)
            continue
        assert tissue.level == int(row["seg_level"])
        assert tissue.notes == ()
        result = cut(slide, tissue, options)
        np.testing.assert_array_equal(result.coords, golden[f"{run}__{size}_{step}__coords"])
        assert result.coords.dtype == np.int64
        assert len(result) == int(row["n_patches"])
        scale = 1
        if "plevel1" in run:
            scale = 4 if name == "synth_compact" else 2
        assert (result.size_level0, result.stride) == (size * scale, step * scale)
        checked_runs += 1
        patches += len(result)
    assert checked_runs == (21 if name == REAL[0] else 22)
    assert patches > 500


def test_a_lattice_is_located_as_by_opencv_point_by_point():
    rng = np.random.default_rng(3)
    for k in range(60):
        n = int(rng.integers(1, 12))
        # few values: many points lie on edges, on vertices and along level edges
        ring = rng.integers(0, 9, (n, 2)).astype(np.int32) * (1 + k % 3)
        xs = np.arange(-1, 28, 1 if k % 2 else 0.5)
        ys = np.arange(-2, 27, 0.5)
        contour = ring.reshape(-1, 1, 2)
        expected = np.zeros((len(xs), len(ys)))
        for i, j in np.ndindex(expected.shape):
            point = (float(xs[i]), float(ys[j]))
            expected[i, j] = cv2.pointPolygonTest(contour, point, measureDist=False)
        np.testing.assert_array_equal(locate(ring, xs, ys), expected)
        assert locate(ring, xs[:0], ys).shape == (0, len(ys))
        assert locate(ring, xs, ys[:0]).shape == (len(xs), 0)


def test_a_slide_without_any_contour_is_one_without_tissue():
    # CLAM ends here in an exception, and its whole folder with it
    slide = ArraySlide(np.full((1024, 1024, 3), 244, np.uint8), mpp=None)
    for options in map(settings, NAMES.values()):
        tissue = find_tissue(slide, options.tissue)
        assert len(tissue) == 0
        assert cut(slide, tissue, options).coords.shape == (0, 2)


def test_the_level_for_the_mask_is_the_largest_downsample_up_to_64():
    def level(*downsamples):
        size = [4096, 2048, 1024, 512]
        images = [np.full((n, n, 3), 244, np.uint8) for n in size[: len(downsamples)]]
        slide = ArraySlide(*images, mpp=None, downsamples=downsamples)
        return find_tissue(slide, settings("clam").tissue).level

    assert level(1.0, 4.0, 16.0, 64.16) == 2
    assert level(1.0, 4.0, 16.0, 64.0) == 3
    assert level(1.0) == 0
    assert level(1.0, 70.0) == 0
    assert level(1.0, 4.0, 32.0) == 2
    slide = VastSlide(44_000, 1, 4, square=22_000)
    tissue = find_tissue(slide, settings("clam").tissue)
    (note,) = tissue.notes
    assert "11000x11000" in note
    assert tissue.scale == (64, 64)
    assert sum(ring_area(p.outer) for p in tissue.polygons) == pytest.approx(22_000**2, rel=0.01)
    assert max(w * h for _, w, h in slide.reads) <= 2048 * 2048


def test_at_a_level_clam_truncates_the_downsample():
    # 3.9999 is 3 in CLAM: 768 level-0 pixels for 256 of level 1, and patches 768 apart
    image = painted(4999, 2000, (2000, 1000, 1800, 900))
    slide = ArraySlide(image, image[:500, :1250], mpp=None)
    assert slide.size[0] / 1250 == 3.9992
    options = settings("clam-biopsy", level=1, mask_level=0)
    patches = cut(slide, find_tissue(slide, options.tissue), options)
    assert (patches.size_level0, patches.stride) == (768, 768)
    assert set(np.diff(np.unique(patches.coords[:, 0]))) == {768}
    # the other grid keeps the downsample as it is
    options = settings("clam-biopsy", level=1, mask_level=0, grid="global")
    patches = cut(slide, find_tissue(slide, options.tissue), options)
    assert patches.size_level0 == pytest.approx(256 * 3.9996, rel=1e-4)
    steps = np.rint(patches.coords / patches.stride)
    np.testing.assert_array_equal(patches.coords, np.rint(steps * patches.stride))


def test_clam_with_micrometres_keeps_its_tissue_and_its_grid():
    slide = ArraySlide(painted(3000, 3000, (1500, 1500, 1200, 1200)), mpp=0.252)
    options = settings("clam-biopsy", mpp=0.5, mask_level=0)
    tissue = find_tissue(slide, options.tissue)
    patches = cut(slide, tissue, options)
    assert patches.stride == pytest.approx(256 * 0.5 / 0.252)
    left, top = tissue.polygons[0].outer.min(0)
    steps = (patches.coords - (left, top)) / patches.stride
    assert np.abs(steps - np.rint(steps)).max() < 0.5 / patches.stride + 1e-9
    assert len(patches) > 10
    assert patches.mpp == 0.5


def test_presets_and_flags():
    biopsy = settings("clam-biopsy")
    assert (biopsy.grid, biopsy.rule, biopsy.mpp) == ("contour", "four_pt", None)
    paper = settings("paper")
    assert paper == settings("clam-biopsy", size=512)
    assert paper.folder == "level0_512px_0px_overlap"
    assert settings("paper-text") == settings("clam-biopsy", size=512, mpp=0.5)
    assert settings("paper-text", mpp=1.0).folder == "10x_512px_0px_overlap"
    options = settings("clam", size=512, threshold=20, min_area=2.0, max_holes=1, mpp=None)
    assert (options.size, options.mpp) == (512, None)
    tissue = options.tissue
    assert (tissue.threshold, tissue.min_area, tissue.max_holes, tissue.median) == (20, 2, 1, 7)
    assert json.loads(json.dumps(options.to_dict())) == options.to_dict()
    assert settings("clam", min_tissue=0.5).rule == "share"
    assert settings("clam", min_tissue=0.5, rule="center").rule == "center"
    assert settings("paper-text", level=0).mpp is None
    assert settings(mask_level=2).tissue == TissueOptions(resolution=None, level=2)
    assert settings("clam", resolution=4.0).tissue.resolution == 4.0
    assert settings() == settings(None, size=None)


def test_wrong_presets_and_flags():
    with pytest.raises(InputError):
        settings("clam", mpp=0.5, level=1)
    with pytest.raises(InputError):
        settings(mpp=0.5, level=0)
    with pytest.raises(UnknownName, match="'clam-biopsy'"):
        settings("bwh-biopsy")
    with pytest.raises(UnknownName, match="'paper'"):
        settings("papr")
    with pytest.raises(UnknownName, match="'sise'"):
        settings("clam", sise=3)
