"""Conversion of the files of tools to our own: every field, reported losses, and errors."""

import csv
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from support import foreign
from support.foreign import TOOLS, Slide, edges_by_cell, expected_edges, row_order, slide
from support.leftovers import temporary_of
from support.refusals import refused

from probsa.core import Bag, GraphOptions, read_bag, shortened, write_bag
from probsa.datasets import ConversionOptions, convert, open_bags, read_table
from probsa.datasets.conversion import Conversion
from probsa.errors import BagError, InputError, OutputExists, ProbSAError


def run(source: Path, out: Path, came: str, **options: object) -> Conversion:
    return convert(source, out, source_format=came, options=ConversionOptions(**options))


def one(source: Path, out: Path, came: str, **options: object) -> tuple[str, ...]:
    """Convert a folder of one bag, and return what is lost."""
    done = run(source, out, came, **options)
    assert [r.status for r in done.rows] == ["converted"], done.rows
    return done.rows[0].lost


def why_not(source: Path, out: Path, came: str, **options: object) -> str:
    """Return why the only bag of a folder fails, after checking that nothing is written."""
    done = run(source, out, came, **options)
    assert [r.status for r in done.rows] == ["failed"], done.rows
    assert [p.name for p in out.glob("*.*") if p.is_file()] == ["conversion.csv"]
    return done.rows[0].reason


def held(path: Path) -> dict[str, object]:
    """Return the attributes of the coordinates."""
    with h5py.File(path) as f:
        return dict(f["coords"].attrs)


def ours(folder: Path, s: Slide, **more: object) -> Path:
    """Write a slide as probsa does."""
    given = {"coords": s.corners, "kind": "slide", **more}
    write_bag(folder / "s1.h5", features=s.features, **given)
    return folder


@pytest.mark.parametrize("tool", TOOLS)
def test_the_graph_survives_every_conversion(tmp_path, tool):
    s = slide(scan=40)
    one(TOOLS[tool](tmp_path / "x", s), tmp_path / "out", tool, slide_mpp=s.mpp)
    bag = open_bags(tmp_path / "out").bag("s1")
    rows = row_order(tool, s)
    np.testing.assert_array_equal(bag.x.float().numpy(), s.features[rows])
    edges, weights = edges_by_cell(bag, rows)
    np.testing.assert_array_equal(edges, expected_edges(s)[0])
    np.testing.assert_allclose(weights, expected_edges(s)[1], rtol=1e-6)
    at = s.cells[rows] * s.tile_px if tool == "stamp" else s.corners
    np.testing.assert_array_equal(bag.coords.numpy(), at)
    assert bag.stride == (s.tile_px if tool == "stamp" else s.step)


def test_our_own_files_stay_what_they_are(tmp_path):
    s = slide(scan=40)
    attributes = {
        "patch_size": 512,
        "patch_size_level0": 1024,
        "size_level0": 1024.0,
        "overlap": 0,
        "level0_magnification": 40,
        "target_magnification": 20,
        "mpp": 0.5,
        "mpp_level0": 0.25,
        "level0_width": 9216,
        "level0_height": 11264,
        "pitch": 1024.0,
    }
    stamps = {"encoder": "uni@0123456789abcdef"}
    source = ours(tmp_path / "x", s, instance_labels=s.labels, attributes=attributes, stamps=stamps)
    assert one(source, tmp_path / "out", "probsa") == ()
    back = read_bag(tmp_path / "out" / "s1.h5")
    np.testing.assert_array_equal(back.features, s.features)
    np.testing.assert_array_equal(back.coords, s.corners)
    np.testing.assert_array_equal(back.instance_labels, s.labels)
    assert (back.stride, back.kind) == (1024.0, "slide")
    assert held(tmp_path / "out" / "s1.h5") == attributes
    with h5py.File(tmp_path / "out" / "s1.h5") as f:
        assert f.attrs["probsa_encoder"] == stamps["encoder"]


def test_every_field_of_a_converted_bag(tmp_path):
    s = slide(scan=40)
    out = tmp_path / "out"
    source = foreign.clam(tmp_path / "x", s)
    assert one(source, out, "clam", slide_mpp=s.mpp, encoder="hf/uni v1") == ()
    attributes = held(out / "s1.h5")
    expected = {  # CLAM cut 256 pixels at a downsample of 4 of a 40x scan
        "patch_size": 256,
        "patch_size_level0": 1024,
        "size_level0": 1024.0,
        "overlap": 0,
        "level0_magnification": 40,
        "target_magnification": 10,
        "pitch": 1024.0,
        "mpp_level0": s.mpp,
        "mpp": pytest.approx(4 * s.mpp),
    }
    assert attributes == expected
    with h5py.File(out / "s1.h5") as f:
        assert set(f) == {"features", "coords"}
        assert f.attrs["probsa_encoder"] == "hf/uni v1"
    lost = one(foreign.clam(tmp_path / "y", slide()), tmp_path / "other", "clam")
    attributes = held(tmp_path / "other" / "s1.h5")
    assert not {"level0_magnification", "mpp", "mpp_level0"} & set(attributes)
    assert (attributes["level0_width"], attributes["level0_height"]) == (9 * 512, 11 * 512)
    (remark,) = lost
    assert "resolution" in remark and "--slide-mpp" in remark


def test_a_patch_of_a_broken_number_of_pixels_is_exact(tmp_path):
    s = slide()
    corners = np.rint(s.cells * 966.04).astype(np.int64)
    attributes = {"patch_size": 512, "size_level0": 966.04, "overlap": 0, "pitch": 966.04}
    source = ours(tmp_path / "x", s, coords=corners, attributes=attributes)
    one(source, tmp_path / "out", "probsa")
    path = tmp_path / "out" / "s1.h5"
    assert held(path)["patch_size_level0"] == 966  # TRIDENT's attribute is rounded
    assert (held(path)["size_level0"], read_bag(path).stride) == (966.04, 966.04)


def test_labels_groups_and_parts_go_beside_the_bags(tmp_path):
    slides = [slide("s1"), slide("s2", seed=1), slide("s3", seed=2)]
    source = foreign.trident(tmp_path / "x", *slides)
    out = tmp_path / "out"
    labels = tmp_path / "labels.csv"
    labels.write_text(
        "bag,label,group,split\ns1,tumour,p1,train\ns2,normal,p2,test\ns3,,p3,val\nother,normal,,\n"
    )
    done = run(source, out, "trident", labels=labels, classes=("normal", "tumour"))
    table = read_table(out / "labels.csv", classes=("normal", "tumour"), labels_required=False)
    assert dict(zip(table.bags, table.labels, strict=True)) == {"s1": 1, "s2": 0, "s3": None}
    assert (table.groups, table.splits) == (("p1", "p2", "p3"), ("train", "test", "val"))
    assert [f"label (none in {labels})" in r.lost for r in done.rows] == [False, False, True]


def test_labels_of_torchmil_and_of_its_instances_are_kept(tmp_path):
    s = slide()
    source = foreign.torchmil(tmp_path / "x", s, slide("s2", seed=1))
    run(source, tmp_path / "ours", "torchmil")
    np.testing.assert_array_equal(read_bag(tmp_path / "ours" / "s1.h5").instance_labels, s.labels)
    text = (tmp_path / "ours" / "labels.csv").read_text()
    assert text == "bag,label,split\ns1,0,test\ns2,1,train\n"


def test_scans_and_slides_without_coordinates(tmp_path):
    rows = slide().features[:5]
    positions = np.arange(5.0)[:, None] * 2.5
    source = tmp_path / "x"
    marks = np.array([0, 1, 1, 0, 0])
    path = source / "ct.h5"
    write_bag(path, features=rows, kind="ct", coords=positions, instance_labels=marks)
    assert one(source, tmp_path / "ours", "probsa") == ()
    assert read_bag(tmp_path / "ours" / "ct.h5").coords[:, 0].tolist() == [0, 2.5, 5, 7.5, 10]
    folder = tmp_path / "slide"
    source = ours(folder / "x", slide(), coords=None)
    one(source, folder / "ours", "probsa")
    bag = read_bag(folder / "ours" / "s1.h5")
    assert (bag.coords, bag.kind) == (None, "slide")


def test_stamp_needs_the_resolution_of_each_slide(tmp_path):
    slides = [slide("a", scan=40), slide("b", seed=1), slide("c", seed=2)]
    source = foreign.stamp(tmp_path / "x", *slides)
    out = tmp_path / "out"
    table = tmp_path / "mpp.csv"
    for text, given, fact in (
        ("", None, "µm.*--slide-mpp"),
        ("slide,mpp\na,0\n", table, "line 2: µm per pixel is 0: expected"),
        ("slide,mpp\na,x\n", table, "line 2: mpp of 'a' is 'x'"),
        ("slide,um\na,1\n", table, "'mpp'.* slide, um"),
        ("slide,mpp\na,1\na,2\n", table, "slide 'a' has two resolutions"),
        ("", "-1", "µm per pixel is -1"),
        ("", "gone.csv", "is 'gone.csv': expected µm"),
    ):
        table.write_text(text)
        refused(InputError, fact, run, source, out, "stamp", slide_mpp=given)
    assert not out.exists()
    table.write_text("slide,mpp\na.svs,0.2527\nb,0.5054\nb.x,0.4\n")
    done = run(source, out, "stamp", slide_mpp=table)
    assert [r.status for r in done.rows] == ["converted", "converted", "failed"]
    assert str(table) in done.rows[2].reason and "'c'" in done.rows[2].reason
    for s in slides[:2]:
        bag = read_bag(out / f"{s.name}.h5")
        metadata = held(out / f"{s.name}.h5")
        np.testing.assert_array_equal(bag.coords, s.cells[s.order] * s.tile_px)
        assert (metadata["patch_size"], metadata["size_level0"]) == (224, s.tile_px)
        assert metadata["mpp_level0"] == s.mpp
        assert metadata["mpp"] == pytest.approx(s.tile_px * s.mpp / 224)
    done = run(source, tmp_path / "wrong", "stamp", slide_mpp="0.51")
    assert "0.44 pixels" in done.rows[1].lost[0]


def test_slideflow_s_tiles_have_the_size_that_the_resolution_says(tmp_path):
    s = slide()
    source = foreign.slideflow(tmp_path / "x", s, stride=2)
    one(source, tmp_path / "out", "slideflow", slide_mpp=s.mpp)
    bag = read_bag(tmp_path / "out" / "s1.h5")
    metadata = held(tmp_path / "out" / "s1.h5")
    np.testing.assert_array_equal(bag.coords, s.corners)
    assert (metadata["size_level0"], metadata["pitch"], metadata["patch_size"]) == (1024, 512, 299)
    assert metadata["overlap"] == 150  # half of 299
    why = why_not(source, tmp_path / "wrong", "slideflow", slide_mpp=0.4)
    assert "lie 512 apart" in why
    lost = one(source, tmp_path / "blind", "slideflow")
    assert any("patch size" in remark and " 512 level-0 pixels" in remark for remark in lost)
    parts = {"cells": s.cells[:1], "features": s.features[:1], "labels": s.labels[:1]}
    source = foreign.slideflow(tmp_path / "single", Slide(name="s1", scan=20, **parts))
    assert open_bags(source).size("s1") == 1  # it can be used without conversion
    assert "a single tile" in why_not(source, tmp_path / "no", "slideflow")
    one(source, tmp_path / "one", "slideflow", slide_mpp=s.mpp)
    np.testing.assert_array_equal(read_bag(tmp_path / "one" / "s1.h5").coords, s.corners[:1])


def test_clam_s_step_and_size_are_told_by_the_corners(tmp_path):
    source = foreign.clam(tmp_path / "x", slide())
    with h5py.File(source / "patches" / "s1.h5", "r+") as f:
        f["coords"].attrs["patch_size"] = 1024
    lost = one(source, tmp_path / "out", "clam", slide_mpp=0.5)
    assert any("step between" in remark and " 512 pixels" in remark for remark in lost)
    path = tmp_path / "out" / "s1.h5"
    assert (held(path)["overlap"], read_bag(path).stride) == (512, 512)
    with h5py.File(source / "patches" / "s1.h5", "r+") as f:
        f["coords"].attrs["patch_size"] = 256
    why = why_not(source, tmp_path / "no", "clam")
    assert "lie 256 apart" in why and "say 512" in why
    source = foreign.clam(tmp_path / "y", slide(), patches=False)
    lost = one(source, tmp_path / "ours", "clam")
    assert any("patch size" in remark and " 512 level-0 pixels" in remark for remark in lost)
    assert read_bag(tmp_path / "ours" / "s1.h5").stride == 512
    s = slide(scan=40)
    lost = one(foreign.clam_first_script(tmp_path / "z", s), tmp_path / "first", "clam")
    (remark,) = [remark for remark in lost if remark.startswith("corners")]
    assert "level 0" in remark
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
    done = run(source, tmp_path / "out", "trident")
    status = {r.bag: r.status for r in done.rows}
    failed = dict.fromkeys(("s0", "s2", "s3", "s4"), "failed")
    assert status == {"s1": "converted", "s5": "empty"} | failed
    reasons = dict(done.failures)
    assert "s0.h5" in reasons["s0"] and "HDF5" in reasons["s0"]
    assert "row 3" in reasons["s2"] and "NaN" in reasons["s2"]
    assert "features have" in reasons["s3"] and "coords 4" in reasons["s3"]
    assert "6 from uni_v1" in reasons["s4"] and "from conch" in reasons["s4"]
    assert [p.name for p in (tmp_path / "out").glob("*.h5")] == ["s1.h5"]
    assert [p.name for p in (tmp_path / "out").rglob(".*")] == [".probsa"]
    with (tmp_path / "out" / "conversion.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert list(rows[0]) == ["bag", "status", "instances", "file", "reason", "lost"]
    assert {r["bag"]: r["status"] for r in rows} == status
    assert (rows[1]["file"], rows[1]["instances"]) == ("s1.h5", str(len(slides[1].cells)))
    assert "empty" in rows[5]["reason"]


def test_instances_flagged_as_unreadable_stay_behind(tmp_path):
    s = slide()
    flags = np.zeros(len(s.cells), np.int8)
    flags[[2, 7]] = 1
    attributes = {"patch_size": 512, "patch_size_level0": 512}
    source = ours(tmp_path / "x", s, unreadable=flags, attributes=attributes)
    lost = one(source, tmp_path / "out", "probsa")
    assert any("2 instances" in remark and "unreadable" in remark for remark in lost)
    bag = read_bag(tmp_path / "out" / "s1.h5")
    np.testing.assert_array_equal(bag.features, s.features[flags == 0])
    np.testing.assert_array_equal(bag.coords, s.corners[flags == 0])


def test_what_is_there_is_kept_unless_asked(tmp_path):
    source = foreign.trident(tmp_path / "x", slide())
    out = tmp_path / "out"
    run(source, out, "trident")
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    foreign.trident(tmp_path / "x", slide(seed=1), slide("s2", seed=2))
    with pytest.raises(OutputExists, match=r"\(s1\).*--overwrite"):
        run(source, out, "trident")
    assert before == {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    run(source, out, "trident", overwrite=True)
    expected = slide(seed=1).features
    np.testing.assert_array_equal(open_bags(out).bag("s1").x.float().numpy(), expected)


@pytest.mark.parametrize("name", ["s1", "n" * 230])
def test_what_a_killed_conversion_left_of_a_bag_is_removed(tmp_path, name):
    (ours(tmp_path / "x", slide()) / "s1.h5").rename(tmp_path / "x" / f"{name}.h5")
    run(tmp_path / "x", tmp_path / "out", "probsa", slide_mpp=0.5)
    file = tmp_path / "out" / f"{name}.h5"
    leftover = temporary_of(file.with_name(shortened(file.name)))
    leftover.write_bytes(b"half")
    foreign_leftover = temporary_of(tmp_path / "out" / "other.h5")
    foreign_leftover.write_bytes(b"of another program")
    run(tmp_path / "x", tmp_path / "out", "probsa", slide_mpp=0.5, overwrite=True)
    assert not leftover.exists() and foreign_leftover.exists() and file.exists()


@pytest.mark.parametrize("tool", TOOLS)
def test_the_wrong_source_format_is_named(tmp_path, tool):
    source = TOOLS[tool](tmp_path / "x", slide())
    for other in sorted({*TOOLS, "probsa"} - {tool}):
        with pytest.raises(BagError, match=f"{other}.*{tool}"):
            run(source, tmp_path / "out", other)
    assert not (tmp_path / "out").exists()


def test_real_tiles_keep_their_graphs(tmp_path, shared_data):
    source = shared_data / "bags" / "colon_tiles"
    before = open_bags(source)
    done = run(source, tmp_path / "out", "probsa", labels=source / "labels.csv")
    assert done.count("converted") == len(before) == 100
    bags = open_bags(tmp_path / "out")
    for name in before.names[::25]:
        for part in ("x", "edges", "weights"):
            assert torch.equal(getattr(bags.bag(name), part), getattr(before.bag(name), part))


def test_formats_folders_and_feature_sets_are_chosen(tmp_path):
    foreign.trident(tmp_path / "x", slide(seed=1), encoder="conch")
    source = foreign.trident(tmp_path / "x", slide())
    out = tmp_path / "out"
    for given, message in (
        (out, "is the source itself"),
        (tmp_path / "gone", "there is no folder"),
        (source, "several folders of features"),
    ):
        refused(ProbSAError, message, run, given, out, "trident")
    one(source, out, "trident", feature_set="features_conch")
    bag = read_bag(out / "s1.h5")
    np.testing.assert_array_equal(bag.features.astype(np.float32), slide(seed=1).features)
    assert bag.features.dtype == np.float16
    with h5py.File(out / "s1.h5") as f:
        assert f.attrs["probsa_encoder"] == "conch"


def test_slices_keep_their_neighbours(tmp_path):
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
    done = run(tmp_path / "x", tmp_path / "out", "probsa")
    assert [r.status for r in done.rows] == ["converted"], done.rows
    graph = GraphOptions(kind="chain")
    converted = open_bags(tmp_path / "out", graph=graph).bag("s1")
    assert len(neighbours(source)) == 7 and neighbours(converted) == neighbours(source)
    if converted.instance_labels is not None:
        kept = dict(zip(map(tuple, x.tolist()), labels.tolist(), strict=True))
        found = [kept[tuple(row)] for row in converted.x.tolist()]
        assert converted.instance_labels.tolist() == found
