"""Conversion between the formats of tools: every field, reported losses, and errors."""

import csv
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from support import foreign
from support.foreign import TOOLS, Slide, edges_by_cell, expected_edges, row_order, slide
from support.random_bags import types_not_executed
from support.refusals import refused

from probsa.core import Bag, GraphOptions
from probsa.core.store import read_bag, write_bag
from probsa.datasets import open_bags
from probsa.datasets.conversion import Conversion, ConversionOptions, convert
from probsa.errors import BagError, InputError, OutputExists, ProbSAError

TARGETS = ("trident", "clam", "torchmil", "probsa")


def run(source: Path, out: Path, came: str, to: str, **options: object) -> Conversion:
    return convert(
        source, out, source_format=came, target_format=to, options=ConversionOptions(**options)
    )


def one(source: Path, out: Path, came: str, to: str, **options: object) -> tuple[str, ...]:
    """Convert a folder of one bag, and return what is lost."""
    done = run(source, out, came, to, **options)
    assert [r.status for r in done.rows] == ["converted"], done.rows
    return done.rows[0].lost


def why_not(source: Path, out: Path, came: str, to: str, **options: object) -> str:
    """Return why the only bag of a folder fails, after checking that nothing is written."""
    done = run(source, out, came, to, **options)
    assert [r.status for r in done.rows] == ["failed"], done.rows
    assert [p.name for p in out.glob("*.*") if p.is_file()] == ["conversion.csv"]
    return done.rows[0].reason


def held(path: Path, dataset: str = "coords") -> tuple[np.ndarray, dict[str, object], object]:
    with h5py.File(path) as f:
        return f[dataset][...], dict(f[dataset].attrs), f[dataset].chunks


def ours(folder: Path, s: Slide, **more: object) -> Path:
    """Write a slide as probsa does."""
    given = {"coords": s.corners, "kind": "slide", **more}
    write_bag(folder / "s1.h5", features=s.features, **given)
    return folder


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("tool", TOOLS)
def test_the_graph_survives_every_conversion(tmp_path, tool, to):
    s = slide(scan=40)
    one(TOOLS[tool](tmp_path / "x", s), tmp_path / "out", tool, to, slide_mpp=s.mpp)
    bag, rows = open_bags(tmp_path / "out").bag("s1"), row_order(tool, s)
    np.testing.assert_array_equal(bag.x.float().numpy(), s.features[rows])
    edges, weights = edges_by_cell(bag, rows)
    np.testing.assert_array_equal(edges, expected_edges(s)[0])
    np.testing.assert_allclose(weights, expected_edges(s)[1], rtol=1e-6)
    at = s.cells[rows] * s.tile_px if tool == "stamp" else s.corners
    np.testing.assert_array_equal(bag.coords.numpy(), at)
    assert bag.stride == (s.tile_px if tool == "stamp" else s.step)


@pytest.mark.parametrize("by", TARGETS)
def test_there_and_back(tmp_path, by):
    """Convert from probsa to another format and back: everything that it stores is kept."""
    s = slide(scan=40)
    attributes = {
        "patch_size": 512, "patch_size_level0": 1024, "size_level0": 1024.0, "overlap": 0,
        "level0_magnification": 40, "target_magnification": 20, "mpp": 0.5, "mpp_level0": 0.25,
        "level0_width": 9216, "level0_height": 11264, "pitch": 1024.0,
    }  # fmt: skip
    stamps = {"encoder": "uni@0123456789abcdef"}
    source = ours(tmp_path / "x", s, instance_labels=s.labels, attributes=attributes, stamps=stamps)
    lost = one(source, tmp_path / "by", "probsa", by)
    # the folder is named after the encoder without the digest of its weights
    folders = {p.name for p in (tmp_path / "by").rglob("features_*")}
    assert folders == ({"features_uni"} if by in ("trident", "torchmil") else set())
    one(tmp_path / "by", tmp_path / "back", by, "probsa")
    back = read_bag(tmp_path / "back" / "s1.h5")
    np.testing.assert_array_equal(back.features, s.features)
    np.testing.assert_array_equal(back.coords, s.corners)
    assert (back.stride, back.kind) == (1024.0, "slide")
    assert (back.instance_labels is None) == ("instance labels" in lost)
    converted = held(tmp_path / "back" / "s1.h5")[1]
    if by in ("probsa", "trident"):
        assert converted == attributes
        assert lost == (() if by == "probsa" else ("instance labels",))
    else:
        assert "resolution (0.25 µm per pixel)" in lost and "mpp_level0" not in converted


def test_every_field_of_trident_s_files(tmp_path):
    s, out = slide(scan=40), tmp_path / "out"
    source = foreign.clam(tmp_path / "x", s)
    assert one(source, out, "clam", "trident", slide_mpp=s.mpp, encoder="hf/uni v1") == ()
    job = out / "10x_256px_0px_overlap"  # CLAM cut 256 pixels at a downsample of 4 of a 40x scan
    path = job / "features_hf_uni_v1" / "s1.h5"
    expected = {
        "patch_size": 256, "patch_size_level0": 1024, "level0_magnification": 40,
        "target_magnification": 10, "overlap": 0, "name": "s1",
        "level0_width": "None", "level0_height": "None",
    }  # fmt: skip
    for file, folder in ((job / "patches" / "s1_patches.h5", job), (path, path.parent)):
        corners, attributes, _ = held(file)
        np.testing.assert_array_equal(corners, s.corners)
        assert corners.dtype == np.int64
        assert attributes | expected | {"savetodir": str(folder)} == attributes
    rows, metadata, _ = held(path, "features")
    np.testing.assert_array_equal(rows, s.features)
    assert metadata == {"name": "s1", "savetodir": str(path.parent), "encoder": "hf/uni v1"}
    with h5py.File(path) as f:
        assert set(f) == {"features", "coords"}
    lost = one(foreign.clam(tmp_path / "x", slide()), tmp_path / "out", "clam", "trident")
    path = tmp_path / "out" / "level0_512px_0px_overlap" / "features_unknown" / "s1.h5"
    attributes = held(path)[1]
    keys = ("level0_magnification", "target_magnification", "mpp", "mpp_level0")
    assert {attributes[k] for k in keys} == {"None"}
    assert (attributes["level0_width"], attributes["level0_height"]) == (9 * 512, 11 * 512)
    assert lost == ("resolution (not stated by the source; --slide-mpp gives it)",)
    assert held(path, "features")[1]["encoder"] == "None"


def test_every_field_of_clam_s_files(tmp_path):
    s, out = slide(scan=40), tmp_path / "out"
    source = foreign.trident(tmp_path / "x", s)
    for path in source.rglob("*.h5"):
        with h5py.File(path, "r+") as f:
            f["coords"].attrs.update(level0_width=9216, level0_height=11264)
    lost = one(source, out, "trident", "clam", slide_mpp=s.mpp)
    corners, attributes, chunks = held(out / "patches" / "s1.h5")
    np.testing.assert_array_equal(corners, s.corners)
    assert (corners.dtype, chunks) == (np.int64, (1, 2))
    assert {k: (v.tolist() if isinstance(v, np.ndarray) else v) for k, v in attributes.items()} == {
        "patch_size": 1024, "patch_level": 0, "downsample": [1.0, 1.0],
        "level_dim": [9216, 11264], "downsampled_level_dim": [9216, 11264],
        "name": "s1", "save_path": str(out / "patches"),
    }  # fmt: skip
    kinds = {k: np.asarray(v).dtype for k, v in attributes.items()}
    assert {kinds[k] for k in ("patch_size", "patch_level", "level_dim")} == {np.dtype(np.int64)}
    assert kinds["downsample"] == np.float64
    path = out / "h5_files" / "s1.h5"
    for name, dtype, values in (("features", "<f4", s.features), ("coords", "<i4", s.corners)):
        rows, attributes, chunks = held(path, name)
        np.testing.assert_array_equal(rows, values)
        assert (rows.dtype.str, attributes, chunks) == (dtype, {}, (32, values.shape[1]))
    with h5py.File(path) as f:
        assert (dict(f.attrs), set(f)) == ({}, {"features", "coords"})
        assert f["coords"].maxshape == (None, 2)
    tensor = torch.load(out / "pt_files" / "s1.pt", weights_only=True)
    assert torch.equal(tensor, torch.from_numpy(s.features))
    assert lost == (
        "resolution (0.2527 µm per pixel)",
        "float16 (written as float32)",
        "name of the encoder",
        "patch size at the encoder (512 pixels)",
    )


def test_a_patch_of_a_broken_number_of_pixels_is_rounded_and_said(tmp_path):
    s = slide()
    corners = np.rint(s.cells * 966.04).astype(np.int64)
    attributes = {"patch_size": 512, "size_level0": 966.04, "overlap": 0, "pitch": 966.04}
    source = ours(tmp_path / "x", s, coords=corners, attributes=attributes)
    lost = one(source, tmp_path / "clam", "probsa", "clam")
    assert "patch size 966.04 (rounded to 966 pixels)" in lost
    assert "size of the slide (not stated by the source: no level_dim)" in lost
    attributes = held(tmp_path / "clam" / "patches" / "s1.h5")[1]
    assert attributes["patch_size"] == 966 and "level_dim" not in attributes
    one(source, tmp_path / "trident", "probsa", "trident")
    path = next((tmp_path / "trident").rglob("s1.h5"))
    assert held(path)[1]["patch_size_level0"] == 966
    assert read_bag(path).stride == 966.04  # TRIDENT's attribute is rounded, probsa's is exact


def test_every_file_of_torchmil_s_layout(tmp_path):
    slides = [slide("s1", scan=40), slide("s2", scan=40, seed=1), slide("s3", scan=40, seed=2)]
    source, out = foreign.trident(tmp_path / "x", *slides), tmp_path / "out"
    labels = tmp_path / "labels.csv"
    labels.write_text(
        "bag,label,group,split\ns1,tumour,p1,train\ns2,normal,p2,test\ns3,,p3,val\nother,normal,,\n"
    )
    done = run(source, out, "trident", "torchmil", labels=labels, classes=("normal", "tumour"))
    root = out / "patches_1024"
    files = {str(p.relative_to(root)) for p in root.rglob("*.npy")}
    folders = ("features/features_uni_v1", "coords")
    bags = {f"{f}/{s.name}.npy" for f in folders for s in slides}
    assert files == bags | {"labels/s1.npy", "labels/s2.npy"}
    for s in slides:
        rows = np.load(root / "features" / "features_uni_v1" / f"{s.name}.npy")
        np.testing.assert_array_equal(rows, s.features)
        corners = np.load(root / "coords" / f"{s.name}.npy")
        np.testing.assert_array_equal(corners, s.corners)
        assert (rows.dtype, corners.dtype) == (np.float32, np.int64)
    for name, y in (("s1", 1), ("s2", 0)):
        label = np.load(root / "labels" / f"{name}.npy")
        assert (label.tolist(), label.dtype) == ([y], np.int64)
    text = (out / "splits.csv").read_text()
    assert text == "bag_name,split\ns1,train\ns2,test\ns3,train\n"
    assert done.lost == (
        "validation part (torchmil's splits have only train and test; written as train)",
        "groups",
    )
    assert [f"label (none in {labels})" in r.lost for r in done.rows] == [False, False, True]


def test_torchmil_s_one_patch_size_gives_the_right_neighbours_to_every_scan(tmp_path):
    """torchmil joins cells of coords / 1024, truncated, which is wrong for other strides."""
    slides = [slide(n, scan=40 if n in "ab" else 20, seed=k) for k, n in enumerate("abcd")]
    source = foreign.trident(tmp_path / "x", *slides)
    path = next(source.rglob("features_*/d.h5"))
    with h5py.File(path, "r+") as f:  # another scanner resolution
        f["coords"][...] = np.rint(slides[3].cells * 482.6) + 11
        f["coords"].attrs.update(patch_size_level0=483, stride=482.6)
    done = run(source, tmp_path / "out", "trident", "torchmil")
    for s, row in zip(slides, done.rows, strict=True):
        corners = np.load(tmp_path / "out" / "patches_1024" / "coords" / f"{s.name}.npy")
        cells = (corners / 1024 - (corners / 1024).min(0)).astype(int)
        np.testing.assert_array_equal(cells, s.cells - s.cells.min(0))
        scaled = any("scaled from a stride of" in text for text in row.lost)
        assert scaled == (s.name in "cd")
        assert scaled != np.array_equal(corners, s.corners)


def test_instance_labels_go_to_torchmil_and_to_ours(tmp_path):
    s = slide()
    source = foreign.torchmil(tmp_path / "x", s, slide("s2", seed=1))
    run(source, tmp_path / "ours", "torchmil", "probsa")
    np.testing.assert_array_equal(read_bag(tmp_path / "ours" / "s1.h5").instance_labels, s.labels)
    text = (tmp_path / "ours" / "labels.csv").read_text()
    assert text == "bag,label,split\ns1,0,test\ns2,1,train\n"
    run(tmp_path / "ours", tmp_path / "back", "probsa", "torchmil")
    marks = np.load(tmp_path / "back" / "patches_512" / "patch_labels" / "s1.npy")
    assert marks.dtype == np.int64
    np.testing.assert_array_equal(marks, s.labels)
    run(source, tmp_path / "clam", "torchmil", "clam")
    text = (tmp_path / "clam" / "labels.csv").read_text()
    assert text == "case_id,slide_id,label\ns1,s1,0\ns2,s2,1\n"


def test_scans_and_slides_without_coordinates(tmp_path):
    rows, positions, source = slide().features[:5], np.arange(5.0)[:, None] * 2.5, tmp_path / "x"
    marks = np.array([0, 1, 1, 0, 0])
    path = source / "ct.h5"
    write_bag(path, features=rows, kind="ct", coords=positions, instance_labels=marks)
    lost = one(source, tmp_path / "torchmil", "probsa", "torchmil", encoder="resnet18")
    assert lost == ("slice positions (rows are in their order)",)
    root = tmp_path / "torchmil"
    np.testing.assert_array_equal(np.load(root / "features" / "features_resnet18" / "ct.npy"), rows)
    assert np.load(root / "slice_labels" / "ct.npy").tolist() == [0, 1, 1, 0, 0]
    assert not (root / "coords").exists()
    assert open_bags(root).bag("ct").edges.tolist() == [[0, 1, 2, 3], [1, 2, 3, 4]]
    assert one(source, tmp_path / "ours", "probsa", "probsa") == ()
    assert read_bag(tmp_path / "ours" / "ct.h5").coords[:, 0].tolist() == [0, 2.5, 5, 7.5, 10]
    why = why_not(source, tmp_path / "trident", "probsa", "trident")
    assert "is a scan" in why and "torchmil or probsa" in why
    assert "slice positions" in one(source, tmp_path / "clam", "probsa", "clam")
    assert {p.name for p in (tmp_path / "clam").glob("[!.]*")} == {"pt_files", "conversion.csv"}
    folder = tmp_path / "slide"
    source = ours(folder / "x", slide(), coords=None)
    for to in ("trident", "torchmil"):
        why = why_not(source, folder / to, "probsa", to)
        assert "has no coordinates" in why and "clam or probsa" in why
    assert one(source, folder / "clam", "probsa", "clam") == ("coordinates",)
    tensor = torch.load(folder / "clam" / "pt_files" / "s1.pt", weights_only=True)
    np.testing.assert_array_equal(tensor.numpy(), slide().features)
    one(source, folder / "ours", "probsa", "probsa")
    bag = read_bag(folder / "ours" / "s1.h5")
    assert (bag.coords, bag.kind) == (None, "slide")


def test_stamp_needs_the_resolution_of_each_slide(tmp_path):
    slides = [slide("a", scan=40), slide("b", seed=1), slide("c", seed=2)]
    source, out, table = (
        foreign.stamp(tmp_path / "x", *slides),
        tmp_path / "out",
        tmp_path / "mpp.csv",
    )
    for text, given, said in (
        ("", None, "in µm, but probsa needs .* pixels: give --slide-mpp"),
        ("slide,mpp\na,0\n", table, "line 2: µm per pixel is 0: expected"),
        ("slide,mpp\na,x\n", table, "line 2: mpp of 'a' is 'x', expected a finite number"),
        ("slide,um\na,1\n", table, "has no column 'mpp': it has slide, um"),
        ("slide,mpp\na,1\na,2\n", table, "slide 'a' has two resolutions"),
        ("", "-1", "µm per pixel is -1"),
        ("", "gone.csv", "is 'gone.csv': expected µm"),
    ):
        table.write_text(text)
        refused(InputError, said, run, source, out, "stamp", "probsa", slide_mpp=given)
    assert not out.exists()
    table.write_text("slide,mpp\na.svs,0.2527\nb,0.5054\nb.x,0.4\n")
    done = run(source, out, "stamp", "probsa", slide_mpp=table)
    assert [r.status for r in done.rows] == ["converted", "converted", "failed"]
    assert f"{table} has no line for the slide 'c'" in done.rows[2].reason
    for s in slides[:2]:
        bag, metadata = read_bag(out / f"{s.name}.h5"), held(out / f"{s.name}.h5")[1]
        np.testing.assert_array_equal(bag.coords, s.cells[s.order] * s.tile_px)
        assert (metadata["patch_size"], metadata["size_level0"]) == (224, s.tile_px)
        assert metadata["mpp_level0"] == s.mpp
        assert metadata["mpp"] == pytest.approx(s.tile_px * s.mpp / 224)
    done = run(source, tmp_path / "wrong", "stamp", "probsa", slide_mpp="0.51")
    assert "places between pixels (corners moved by up to 0.44 pixels" in done.rows[1].lost[0]


def test_slideflow_s_tiles_have_the_size_that_the_resolution_says(tmp_path):
    s = slide()
    source = foreign.slideflow(tmp_path / "x", s, stride=2)
    one(source, tmp_path / "out", "slideflow", "probsa", slide_mpp=s.mpp)
    bag, metadata = read_bag(tmp_path / "out" / "s1.h5"), held(tmp_path / "out" / "s1.h5")[1]
    np.testing.assert_array_equal(bag.coords, s.corners)
    assert (metadata["size_level0"], metadata["pitch"], metadata["patch_size"]) == (1024, 512, 299)
    assert metadata["overlap"] == 150  # half of 299
    why = why_not(source, tmp_path / "wrong", "slideflow", "probsa", slide_mpp=0.4)
    assert "but tiles lie 512 apart: is the resolution right?" in why
    lost = one(source, tmp_path / "blind", "slideflow", "probsa")
    assert "patch size (not stated; 512 level-0 pixels by the coordinates)" in lost
    parts = {"cells": s.cells[:1], "features": s.features[:1], "labels": s.labels[:1]}
    source = foreign.slideflow(tmp_path / "single", Slide(name="s1", scan=20, **parts))
    assert open_bags(source).size("s1") == 1  # it can be used without conversion
    assert "a single tile" in why_not(source, tmp_path / "no", "slideflow", "probsa")
    one(source, tmp_path / "one", "slideflow", "probsa", slide_mpp=s.mpp)
    np.testing.assert_array_equal(read_bag(tmp_path / "one" / "s1.h5").coords, s.corners[:1])


def test_clam_s_step_and_size_are_told_by_the_corners(tmp_path):
    source = foreign.clam(tmp_path / "x", slide())
    with h5py.File(source / "patches" / "s1.h5", "r+") as f:
        f["coords"].attrs["patch_size"] = 1024
    lost = one(source, tmp_path / "out", "clam", "trident", slide_mpp=0.5)
    assert "step between patches (not stated; 512 pixels by the coordinates)" in lost
    path = tmp_path / "out" / "20x_1024px_512px_overlap" / "features_unknown" / "s1.h5"
    assert (held(path)[1]["overlap"], read_bag(path).stride) == (512, 512)
    with h5py.File(source / "patches" / "s1.h5", "r+") as f:
        f["coords"].attrs["patch_size"] = 256
    why = why_not(source, tmp_path / "no", "clam", "trident")
    assert "stated to lie 256 apart, but the coordinates say 512" in why
    source = foreign.clam(tmp_path / "y", slide(), patches=False)
    lost = one(source, tmp_path / "ours", "clam", "probsa")
    assert "patch size (not stated; 512 level-0 pixels by the coordinates)" in lost
    assert read_bag(tmp_path / "ours" / "s1.h5").stride == 512
    s = slide(scan=40)
    lost = one(foreign.clam_first_script(tmp_path / "z", s), tmp_path / "first", "clam", "probsa")
    assert "corners were converted from the level of the patches to level 0" in lost
    np.testing.assert_array_equal(read_bag(tmp_path / "first" / "s1.h5").coords, s.corners)


def test_what_is_damaged_is_named_and_the_rest_is_done(tmp_path):
    slides = [slide(f"s{k}", seed=k) for k in range(5)]
    source = foreign.trident(tmp_path / "x", *slides)
    files = {p.stem: p for p in source.rglob("features_uni_v1/*.h5")}
    foreign.trident_empty(source, "s5")
    files["s0"].write_bytes(files["s0"].read_bytes()[:-100])
    with h5py.File(files["s2"], "r+") as f:
        f["features"][3, 1] = np.nan
    with h5py.File(files["s3"], "r+") as f:
        del f["coords"]
        f["coords"] = np.zeros((4, 2), np.int64)
    with h5py.File(files["s4"], "r+") as f:
        f["features"].attrs["encoder"] = "conch"
    done = run(source, tmp_path / "out", "trident", "clam")
    status = {r.bag: r.status for r in done.rows}
    failed = dict.fromkeys(("s0", "s2", "s3", "s4"), "failed")
    assert status == {"s1": "converted", "s5": "empty"} | failed
    reasons = dict(done.failures)
    assert "s0.h5 cannot be read as HDF5: it is damaged, truncated" in reasons["s0"]
    assert "row 3" in reasons["s2"] and "NaN" in reasons["s2"]
    assert "features have" in reasons["s3"] and "coords 4" in reasons["s3"]
    assert "from conch, the first bag 6 from uni_v1" in reasons["s4"]
    assert [p.name for p in (tmp_path / "out" / "pt_files").iterdir()] == ["s1.pt"]
    assert [p.name for p in (tmp_path / "out").rglob(".*")] == [".probsa"]
    with (tmp_path / "out" / "conversion.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert list(rows[0]) == ["bag", "status", "instances", "file", "reason", "lost"]
    assert {r["bag"]: r["status"] for r in rows} == status
    assert (rows[1]["file"], rows[1]["instances"]) == ("pt_files/s1.pt", str(len(slides[1].cells)))
    assert "float16 (written as float32)" in rows[1]["lost"] and "empty" in rows[5]["reason"]


def test_instances_flagged_as_unreadable_stay_behind(tmp_path):
    s = slide()
    flags = np.zeros(len(s.cells), np.int8)
    flags[[2, 7]] = 1
    attributes = {"patch_size": 512, "patch_size_level0": 512}
    source = ours(tmp_path / "x", s, unreadable=flags, attributes=attributes)
    lost = one(source, tmp_path / "out", "probsa", "clam")
    assert "2 instances flagged as unreadable (left out)" in lost
    tensor = torch.load(tmp_path / "out" / "pt_files" / "s1.pt", weights_only=True)
    np.testing.assert_array_equal(tensor.numpy(), s.features[flags == 0])
    corners = held(tmp_path / "out" / "patches" / "s1.h5")[0]
    np.testing.assert_array_equal(corners, s.corners[flags == 0])


@pytest.mark.parametrize("to", TARGETS)
def test_what_is_there_is_kept_unless_asked(tmp_path, to):
    source, out = foreign.trident(tmp_path / "x", slide()), tmp_path / "out"
    run(source, out, "trident", to)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    foreign.trident(tmp_path / "x", slide(seed=1), slide("s2", seed=2))
    with pytest.raises(OutputExists, match=r"already holds 1 of these bags \(s1\).*--overwrite"):
        run(source, out, "trident", to)
    assert before == {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    run(source, out, "trident", to, overwrite=True)
    expected = slide(seed=1).features
    np.testing.assert_array_equal(open_bags(out).bag("s1").x.float().numpy(), expected)


@pytest.mark.parametrize("tool", TOOLS)
def test_the_wrong_source_format_is_named(tmp_path, tool):
    source = TOOLS[tool](tmp_path / "x", slide())
    for other in sorted({*TOOLS, "probsa"} - {tool}):
        with pytest.raises(BagError, match=f"not look like {other}'s files but like {tool}'s"):
            run(source, tmp_path / "out", other, "probsa")
    assert not (tmp_path / "out").exists()


def test_real_tiles_go_to_every_format_and_keep_their_graphs(tmp_path, shared_data):
    source = shared_data / "bags" / "colon_tiles"
    before = open_bags(source)
    for to in TARGETS:
        done = run(source, tmp_path / to, "probsa", to, labels=source / "labels.csv")
        assert done.count("converted") == len(before) == 100
        bags = open_bags(tmp_path / to)
        for name in before.names[::25]:
            for part in ("x", "edges", "weights"):
                assert torch.equal(getattr(bags.bag(name), part), getattr(before.bag(name), part))


def test_formats_folders_and_feature_sets_are_chosen(tmp_path):
    foreign.trident(tmp_path / "x", slide(seed=1), encoder="conch")
    source, out = foreign.trident(tmp_path / "x", slide()), tmp_path / "out"
    for given, to, message in (
        (source, "Trident", r"no format to write named 'Trident'.*mean 'trident'"),
        (out, "clam", "is the source itself"),
        (tmp_path / "gone", "clam", "there is no folder"),
        (source, "probsa", "several folders of features"),
    ):
        with types_not_executed():
            refused(ProbSAError, message, run, given, out, "trident", to)
    one(source, out, "trident", "probsa", feature_set="features_conch")
    bag = read_bag(out / "s1.h5")
    np.testing.assert_array_equal(bag.features.astype(np.float32), slide(seed=1).features)
    assert bag.features.dtype == np.float16
    with h5py.File(out / "s1.h5") as f:
        assert f.attrs["probsa_encoder"] == "conch"


@pytest.mark.parametrize("to", [format for format in TARGETS if format != "trident"])
def test_slices_keep_their_neighbours_in_every_format(tmp_path, to):
    generator = np.random.default_rng(4)
    positions = np.array([1, 10, 11, 12, 2, 3, 4.5, 6])[:, None]
    x = generator.normal(size=(8, 5)).astype(np.float32)
    labels = np.arange(8) % 3
    write_bag(
        tmp_path / "x" / "s1.h5", features=x, coords=positions, kind="ct", instance_labels=labels
    )

    def neighbours(bag: Bag) -> set[frozenset[float]]:
        first_feature = bag.x[:, 0].tolist()
        return {frozenset((first_feature[i], first_feature[j])) for i, j in bag.edges.T.tolist()}

    source = open_bags(tmp_path / "x").bag("s1")
    done = run(tmp_path / "x", tmp_path / "out", "probsa", to)
    assert [r.status for r in done.rows] == ["converted"], done.rows
    graph = GraphOptions(kind="chain")
    converted = open_bags(tmp_path / "out", graph=graph).bag("s1")
    assert len(neighbours(source)) == 7 and neighbours(converted) == neighbours(source)
    if converted.instance_labels is not None:
        kept = dict(zip(map(tuple, x.tolist()), labels.tolist(), strict=True))
        found = [kept[tuple(row)] for row in converted.x.tolist()]
        assert converted.instance_labels.tolist() == found
