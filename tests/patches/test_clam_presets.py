"""CLAM's presets against what CLAM itself wrote: contours, holes and coordinates, in its order."""

import csv
import hashlib
import importlib.util
import json

import cv2
import numpy as np
import pytest
from support.array_slide import ArraySlide, VastSlide, painted
from support.refusals import refused

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


def asked(run, *, size, step):
    """The settings of a golden run."""
    shape = {"size": size, "overlap": size - step}
    if run in NAMES:
        return settings(NAMES[run], **shape)
    changes = {k: v for word in run.split("_") for k, v in CHANGES[word].items()}
    return settings("clam", **shape, **changes)


class Rows:
    """numpy, whose arange of `many` begins at `first`: a painter of whole images paints a band."""

    def __init__(self, first, many):
        self.first, self.many = first, many

    def __getattr__(self, name):
        return getattr(np, name)

    def arange(self, n, dtype):
        return np.arange(n, dtype=dtype) + (self.first if n == self.many else 0)


def in_bands(make, *, many=96):
    """Painting a slide at once takes 3 GB, and most of the time goes into getting them."""
    whole = make.paint

    def paint(width, height, *shapes):
        bands = []
        for first in range(0, height, many):
            make.np = Rows(first, min(many, height - first))
            bands.append(whole(width, make.np.many, *shapes))
        make.np = np
        return np.concatenate(bands)

    make.paint = paint


@pytest.fixture(scope="session")
def golden_slides(shared_golden, shared_data):
    """The slides of the golden runs by name; the painted ones are made anew and checked."""
    folder = shared_golden / "patches"
    spec = importlib.util.spec_from_file_location("make_slides", folder / "make_slides.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    in_bands(make)
    sums = json.loads((folder / "slides_sha256.json").read_text())
    found = {}
    for name, function in PAINTED.items():
        image, steps = getattr(make, function)()
        levels = [image]
        for halvings in steps:
            image = levels[-1]
            for _ in range(halvings):
                image = make.halve(image)
            levels.append(image)
        assert [hashlib.sha256(i.tobytes()).hexdigest() for i in levels] == [
            level["sha256"] for level in sums[name]
        ]
        found[name] = ArraySlide(*levels, mpp=None, name=name)
    for name, ending in zip(REAL, (".svs", ".tiff"), strict=True):
        found[name] = open_slide(shared_data / "wsi" / f"{name}{ending}")
    yield found
    for name in REAL:
        found[name].close()


def joined(rings):
    return np.concatenate([np.zeros((0, 2), np.int32), *rings])


def assert_same_tissue(tissue, golden, run):
    outlines = [p.outer for p in tissue.polygons]
    holes = [hole for p in tissue.polygons for hole in p.holes]
    parents = [k for k, p in enumerate(tissue.polygons) for _ in p.holes]
    np.testing.assert_array_equal(joined(outlines), golden[f"{run}__contours_xy"])
    np.testing.assert_array_equal(joined(holes), golden[f"{run}__holes_xy"])
    for what, rings in (("contours", outlines), ("holes", holes)):
        offsets = np.cumsum([0, *map(len, rings)])
        np.testing.assert_array_equal(offsets, golden[f"{run}__{what}_off"])
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
    checked = kept = 0
    segmented = {}  # patch sizes share their tissue
    for row in runs:
        run, size, step = row["preset"], int(row["patch"]), int(row["step"])
        chosen = asked(run, size=size, step=step)
        if chosen.tissue not in segmented:
            segmented[chosen.tissue] = find_tissue(slide, chosen.tissue)
        tissue = segmented[chosen.tissue]
        assert_same_tissue(tissue, golden, run)
        if row["status"] == "failed":
            assert "IndexError" in row["error"]
            refused(SlideError, r"no level 1 .* its levels are 0 to 0", cut, slide, tissue, chosen)
            continue
        assert tissue.level == int(row["seg_level"])
        assert tissue.notes == ()
        found = cut(slide, tissue, chosen)
        np.testing.assert_array_equal(found.coords, golden[f"{run}__{size}_{step}__coords"])
        assert found.coords.dtype == np.int64
        assert len(found) == int(row["n_patches"])
        scale = 4 if "plevel1" in run and name.startswith("synth_compact") else 2
        scale = scale if "plevel1" in run else 1
        assert (found.size_level0, found.stride) == (size * scale, step * scale)
        checked += 1
        kept += len(found)
    assert (checked, kept > 500) == (21 if name == REAL[0] else 22, True)


def test_a_lattice_is_located_as_by_opencv_point_by_point():
    rng = np.random.default_rng(3)
    for k in range(60):
        n = int(rng.integers(1, 12))
        # few values: many points lie on edges, on vertices and along level edges
        ring = rng.integers(0, 9, (n, 2)).astype(np.int32) * (1 + k % 3)
        xs = np.arange(-1, 28, 1 if k % 2 else 0.5)
        ys = np.arange(-2, 27, 0.5)
        shape = ring.reshape(-1, 1, 2)
        theirs = [
            [cv2.pointPolygonTest(shape, (float(x), float(y)), measureDist=False) for y in ys]
            for x in xs
        ]
        np.testing.assert_array_equal(locate(ring, xs, ys), np.array(theirs))
        assert locate(ring, xs[:0], ys).shape == (0, len(ys))
        assert locate(ring, xs, ys[:0]).shape == (len(xs), 0)


def test_a_slide_without_any_contour_is_one_without_tissue():
    # CLAM ends here in an exception, and its whole folder with it
    slide = ArraySlide(np.full((1024, 1024, 3), 244, np.uint8), mpp=None)
    for chosen in map(settings, NAMES.values()):
        tissue = find_tissue(slide, chosen.tissue)
        assert (len(tissue), cut(slide, tissue, chosen).coords.shape) == (0, (0, 2))


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
    assert tissue.notes == (
        "Level 1 has 11000x11000 pixels, more than CLAM accepts; tissue is found on an image 64 "
        "times smaller than the slide.",
    )
    assert sum(ring_area(p.outer) for p in tissue.polygons) == pytest.approx(22_000**2, rel=0.01)
    assert max(w * h for _, w, h in slide.reads) <= 2048 * 2048


def test_at_a_level_clam_truncates_the_downsample():
    # 3.9999 is 3 in CLAM: 768 level-0 pixels for 256 of level 1, and patches 768 apart
    image = painted(4999, 2000, (2000, 1000, 1800, 900))
    slide = ArraySlide(image, image[:500, :1250], mpp=None)
    assert slide.size[0] / 1250 == 3.9992
    chosen = settings("clam-biopsy", level=1, mask_level=0)
    found = cut(slide, find_tissue(slide, chosen.tissue), chosen)
    assert (found.size_level0, found.stride) == (768, 768)
    assert set(np.diff(np.unique(found.coords[:, 0]))) == {768}
    # the other grid keeps the downsample as it is
    chosen = settings("clam-biopsy", level=1, mask_level=0, grid="global")
    found = cut(slide, find_tissue(slide, chosen.tissue), chosen)
    assert found.size_level0 == pytest.approx(256 * 3.9996, rel=1e-4)
    np.testing.assert_array_equal(
        found.coords, np.rint(np.rint(found.coords / found.stride) * found.stride)
    )


def test_clam_with_micrometres_keeps_its_tissue_and_its_grid():
    slide = ArraySlide(painted(3000, 3000, (1500, 1500, 1200, 1200)), mpp=0.252)
    chosen = settings("clam-biopsy", mpp=0.5, mask_level=0)
    tissue = find_tissue(slide, chosen.tissue)
    found = cut(slide, tissue, chosen)
    assert found.stride == pytest.approx(256 * 0.5 / 0.252)
    left, top = tissue.polygons[0].outer.min(0)
    steps = (found.coords - (left, top)) / found.stride
    assert np.abs(steps - np.rint(steps)).max() < 0.5 / found.stride + 1e-9
    assert len(found) > 10
    assert found.mpp == 0.5


def test_presets_and_flags():
    biopsy, paper, text = map(settings, ("clam-biopsy", "paper", "paper-text"))
    assert paper == settings("clam-biopsy", size=512)
    assert text == settings("clam-biopsy", size=512, mpp=0.5)
    assert (biopsy.grid, biopsy.rule, biopsy.mpp) == ("contour", "four_pt", None)
    assert settings("paper-text", mpp=1.0).folder == "10x_512px_0px_overlap"
    assert paper.folder == "level0_512px_0px_overlap"
    chosen = settings("clam", size=512, threshold=20, min_area=2.0, max_holes=1, mpp=None)
    assert (chosen.size, chosen.tissue.threshold, chosen.tissue.min_area) == (512, 20, 2)
    assert (chosen.tissue.max_holes, chosen.tissue.median, chosen.mpp) == (1, 7, None)
    assert settings("clam", min_tissue=0.5).rule == "share"
    assert settings("clam", min_tissue=0.5, rule="center").rule == "center"
    assert settings("paper-text", level=0).mpp is None
    assert settings(mask_level=2).tissue == TissueOptions(resolution=None, level=2)
    assert settings("clam", resolution=4.0).tissue.resolution == 4.0
    assert settings() == settings(None, size=None)
    refused(InputError, "give one of --mpp and --level", settings, "clam", mpp=0.5, level=1)
    refused(InputError, "give one of --mpp and --level", settings, mpp=0.5, level=0)
    assert json.loads(json.dumps(chosen.to_dict())) == chosen.to_dict()
    for wrong, flags, says in (
        ("bwh-biopsy", {}, "Did you mean 'clam-biopsy'"),
        ("clam", {"sise": 3}, "no setting named 'sise'"),
        ("papr", {}, "paper"),
    ):
        refused(UnknownName, says, settings, wrong, **flags)
