"""Files of other tools: every tool gives the same graph for a slide; invalid files are errors."""

import shutil
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from support import foreign
from support.foreign import TOOLS, edges_by_cell, expected_edges, row_order, slide
from support.refusals import refused

from probsa.core import GraphOptions
from probsa.datasets import NoCoordinates, open_bags
from probsa.datasets.formats.slideflow import corners
from probsa.errors import BagError, EmptyBag, GraphError, InputError
from probsa.training import DataConfig, RunConfig, prepare


@pytest.mark.parametrize("scan", [20, 40])
@pytest.mark.parametrize("tool", TOOLS)
def test_one_slide_gives_one_graph_from_every_tool(tmp_path, tool, scan):
    s = slide(scan=scan)
    bags = open_bags(TOOLS[tool](tmp_path / "x", s))
    assert bags.formats() == {tool}
    assert (bags.names, bags.in_dim, bags.size("s1")) == (("s1",), foreign.WIDTH, len(s.cells))
    bag = bags.bag("s1")
    rows = row_order(tool, s)
    np.testing.assert_array_equal(bag.x.float().numpy(), s.features[rows])
    edges, weights = edges_by_cell(bag, rows)
    expected, by_hand = expected_edges(s)
    assert expected.shape[1] > 100
    np.testing.assert_array_equal(edges, expected)
    np.testing.assert_allclose(weights, by_hand, rtol=1e-6)
    reference = open_bags(foreign.trident(tmp_path / "reference", slide(scan=20))).bag("s1")
    np.testing.assert_array_equal(weights, edges_by_cell(reference, row_order("trident", s))[1])
    assert bags.unit == ("um" if tool == "stamp" else "px")
    if tool != "stamp":
        assert bag.stride == s.step
        np.testing.assert_array_equal(bag.coords.numpy(), s.corners)


def test_a_slide_without_tissue_is_left_out_of_training(tmp_path):
    slides = [slide(f"s{k}", seed=k) for k in range(8)]
    root = foreign.trident(tmp_path / "x", *slides)
    foreign.trident_empty(root, "a_none")
    foreign.trident_empty(root, "s8", flat=True)
    names = ["a_none", *(f"s{k}" for k in range(9))]
    lines = [f"{name},{k % 2},{k // 2 % 3}" for k, name in enumerate(names)]
    (tmp_path / "labels.csv").write_text("\n".join(["bag,label,fold", *lines]) + "\n")
    data = DataConfig(features=root, labels=tmp_path / "labels.csv", test_fold=0)
    prepared = prepare(RunConfig(model="abmil-probsa-diag", data=data))
    assert prepared.bags.notes.keys() == {"a_none", "s8"}
    assert {note.kind for (note,) in prepared.bags.notes.values()} == {"left_out"}
    split = prepared.split
    assert {*split.train, *split.val, *split.test} == {s.name for s in slides}
    assert prepared.table.bags == tuple(s.name for s in slides)
    refused(EmptyBag, "'a_none'", prepared.bags.bag, "a_none")


def test_stamp_s_stride_rows_and_extractors(tmp_path):
    bags = open_bags(foreign.stamp(tmp_path, slide(scan=40)))
    assert bags.unit == "um"
    assert bags.bag("s1").stride == pytest.approx(1014 * 0.2527, abs=2e-3)  # not the stated 256
    assert bags.notes == {}
    bags = open_bags(tmp_path, graph=GraphOptions(stride=256.5))
    assert bags.bag("s1").stride == 256.5
    s = slide()
    path = next(foreign.stamp(tmp_path, s).rglob("*.h5"))
    with h5py.File(path, "r+") as f:
        f.move("feats", "patch_embeddings")
    np.testing.assert_array_equal(open_bags(tmp_path).bag("s1").x.float(), s.features[s.order])
    shutil.copytree(foreign.stamp(tmp_path, slide()) / "uni-1a2b3c4d", tmp_path / "conch-00000000")
    refused(BagError, "conch-00000000, uni-1a2b3c4d", open_bags, tmp_path)
    assert open_bags(tmp_path, features="uni-1a2b3c4d").names == ("s1",)


@pytest.mark.parametrize("version", ["1.3.0", "2.0.1", "2.4.0"])
def test_every_version_of_stamp_s_files(tmp_path, version):
    s = slide()
    bags = open_bags(foreign.stamp(tmp_path, s, version=version))
    np.testing.assert_array_equal(edges_by_cell(bags.bag("s1"), s.order)[0], expected_edges(s)[0])
    apart = 256.0 if version == "1.3.0" else s.tile_px * s.mpp
    assert bags.bag("s1").stride == pytest.approx(apart, abs=2e-3)
    np.testing.assert_allclose(
        bags.bag("s1").coords.numpy(), s.cells[s.order] * apart, atol=2e-3, rtol=0
    )


STAMP_FAULTS = {
    r"s1\.h5 was written by STAMP 3\.1\.0, .* up to version 2": {"stamp_version": "3.1.0"},
    "holds a patient-level embedding": {"feat_type": "patient"},
    r"s1\.h5 does .* the unit of": {"tile_size_um": None, "unit": None},
    r"s1\.h5 does .* the unit": {"tile_size_um": None, "unit": "mm"},
    r"expected coords \(tiles, 2\) in micrometres, .* missing": {"coords": None},
    r"coords 3\.": {"coords": np.zeros((3, 2), np.float32)},
    "slide-level embedding": {"feats": np.zeros(6, np.float16)},
}


@pytest.mark.parametrize("message", STAMP_FAULTS)
def test_stamp_files_that_are_refused(tmp_path, message):
    """A change of an array replaces it, a change of an attribute sets it; None removes either."""
    path = next(foreign.stamp(tmp_path, slide()).rglob("*.h5"))
    with h5py.File(path, "r+") as f:
        for key, value in STAMP_FAULTS[message].items():
            held = f if key in f else f.attrs
            del held[key]
            if value is not None:
                held[key] = value
    refused(BagError, message, open_bags(tmp_path).stored, "s1")


def test_slideflow_s_index_without_zip_and_without(tmp_path):
    s = slide()
    bag = open_bags(foreign.slideflow(tmp_path / "npy", s, zipped=False)).bag("s1")
    np.testing.assert_array_equal(bag.coords.numpy(), s.corners)
    root = foreign.slideflow(tmp_path / "npz", s, slide("s2", seed=1))
    (root / "s2.index.npz").unlink()
    refused(BagError, r"'s2': .*s2\.index\.npz", open_bags(root).bag, "s2")
    (root / "s1.index.npz").unlink()
    bags = open_bags(root)
    assert bags.bag("s1").coords is None
    assert bags.notes == {"s1": (NoCoordinates(),)}


@pytest.mark.parametrize("side", [604, 605])
def test_slideflow_s_centres_become_corners(tmp_path, side):
    """For an odd side, the centre may be rounded down or exact."""
    s = slide()
    expected = s.cells * side + 7
    for k, centres in enumerate((expected + side // 2, expected + side / 2)):
        root = foreign.slideflow(tmp_path / str(k), s)
        np.savez(root / "s1.index.npz", centres)
        bag = open_bags(root).bag("s1")
        np.testing.assert_array_equal(bag.coords.numpy(), expected)
        assert bag.stride == side


def test_a_side_worked_out_from_the_resolution_is_not_a_pixel_off():
    """tile_um / mpp may differ from an integer by rounding errors."""
    expected = np.array([[7, 0], [1031, 2048]])
    for side in (1024 - 1e-10, 1024.0, 1024 + 1e-10, 1024.3):
        np.testing.assert_array_equal(corners(expected + 512, side), expected)


def test_clam_s_tensors_alone_take_their_corners_from_patches(tmp_path):
    s = slide(scan=40)
    root = foreign.clam(tmp_path, s, slide("s2", seed=1), h5=False)
    bags = open_bags(root)
    assert bags.formats() == {"clam"}
    np.testing.assert_array_equal(
        edges_by_cell(bags.bag("s1"), np.arange(len(s.cells)))[0], expected_edges(s)[0]
    )
    (root / "patches" / "s2.h5").unlink()
    refused(BagError, r"'s2': .*patches/s2\.h5", open_bags(root).bag, "s2")
    (root / "patches" / "s1.h5").unlink()
    (root / "patches").rmdir()
    assert open_bags(root).bag("s1").coords is None


def test_clam_s_older_corners(tmp_path):
    """On 40x scans: corners at the level of the patches, and TRIDENT's files of such corners."""
    s = slide(scan=40)
    second = tmp_path / "second"
    third = tmp_path / "third"
    clam = open_bags(foreign.clam_first_script(tmp_path / "first", s))
    np.testing.assert_array_equal(clam.bag("s1").coords.numpy(), s.corners)
    foreign.trident(second, s)
    for path in second.rglob("*.h5"):
        with h5py.File(path, "r+") as f:
            for key in list(f["coords"].attrs):
                del f["coords"].attrs[key]
            f["coords"].attrs.update(patch_size=512, patch_level=0, custom_downsample=2)
    trident = open_bags(second)
    for bags in (clam, trident):
        bag = bags.bag("s1")
        assert bag.stride == 1024
        edges = edges_by_cell(bag, np.arange(len(s.cells)))[0]
        np.testing.assert_array_equal(edges, expected_edges(s)[0])
    assert trident.notes == {}
    # a size at the target magnification is refused, and gives no empty graph
    foreign.trident(third, s)
    for path in third.rglob("*.h5"):
        with h5py.File(path, "r+") as f:
            f["coords"].attrs["patch_size_level0"] = 512
    refused(GraphError, "512 .*1024", open_bags(third).bag, "s1")


def test_folders_with_the_bags_of_two_tools(tmp_path):
    folder = next(foreign.trident(tmp_path / "t", slide("a")).rglob("features_*"))
    stamp = next(foreign.stamp(tmp_path / "s", slide("b")).rglob("*.h5"))
    (folder / "b.h5").write_bytes(stamp.read_bytes())
    with pytest.raises(BagError, match=r"b\.h5 .*'features'"):
        open_bags(folder).bag("b")
    (folder / "b.h5").rename(folder / "0.h5")  # sorted first: the folder is STAMP's
    with pytest.raises(BagError, match=r"a\.h5 .*'coords', 'features'"):
        open_bags(folder).bag("a")
    (folder / "0.h5").unlink()
    torch.save(torch.zeros(2, 3), folder / "c.pt")
    refused(BagError, r"a\.h5 and c\.pt", open_bags, folder)


class Harmful:
    """An object that writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


X = torch.arange(12.0).reshape(3, 4)
TENSORS = {
    "dict": ({"features": X}, "holds a dict,"),
    "list": ([X[0], X[1]], "holds a list,.*eva"),
    "one row": (X[0], r"shape \(4,\), expected \(instances, width\)"),
    "other rows": (torch.zeros(5, 6), "features have 5 rows, coords 61"),
    "one row repeated a hundred billion times": (torch.zeros(1).expand(10**11, 4), r"s1\.pt"),
    "one row repeated a few times": (X[:1].expand(5, 4), "repeats its values"),
    "no values": (torch.empty(10**12, 4, device="meta"), "of another kind"),
    "sparse": (X.to_sparse(), "of another kind"),
    "complex": (X.to(torch.complex64), "of another kind"),
}


@pytest.mark.parametrize("what", TENSORS)
def test_pt_files_of_something_else(tmp_path, what):
    root, (held, message) = foreign.slideflow(tmp_path, slide()), TENSORS[what]
    torch.save(held, root / "s1.pt")
    refused(BagError, message, open_bags(root).bag, "s1")
    if what != "other rows":
        refused(BagError, message, open_bags(root).size, "s1")


def test_pt_files_are_never_unpickled_and_damage_is_named(tmp_path):
    root = foreign.slideflow(tmp_path, slide())
    path = root / "s1.pt"
    whole = path.read_bytes()
    torch.save({"x": Harmful(tmp_path / "touched")}, path)
    refused(BagError, r"s1\.pt", open_bags(root).bag, "s1")
    assert not (tmp_path / "touched").exists()
    for keep in (0, 10, 200, -1):
        path.write_bytes(whole[:keep])
        for read in (open_bags(root).bag, open_bags(root).size):
            refused(BagError, r"s1\.pt", read, "s1")
    torch.save(torch.zeros(5 * 10**6, 4), tmp_path / "whole.zip")
    with (
        zipfile.ZipFile(tmp_path / "whole.zip") as z,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in z.namelist():
            packed.writestr(name, z.read(name))
    refused(BagError, r"s1\.pt: .*80,", open_bags(root).bag, "s1")


def test_pt_files_of_bfloat16_and_of_no_tile(tmp_path):
    root = foreign.slideflow(tmp_path, slide())
    x = torch.from_numpy(slide().features)
    torch.save(x[None].bfloat16().requires_grad_(), root / "s1.pt")
    assert torch.equal(open_bags(root).bag("s1").x, x.bfloat16().float())
    torch.save(torch.zeros(0, 6), root / "s1.pt")
    assert open_bags(root).empty() == ("s1",)
    path = next(foreign.stamp(tmp_path / "stamp", slide()).rglob("*.h5"))
    with h5py.File(path, "w") as f:
        f["feats"] = np.zeros((0, 6), np.float16)
    assert open_bags(tmp_path / "stamp").empty() == ("s1",)


def test_what_is_not_read_says_what_it_looks_like(tmp_path):
    (tmp_path / "z" / "a.zarr").mkdir(parents=True)
    with pytest.raises(BagError, match=r"LazySlide.*'features'.*'coords'"):
        open_bags(tmp_path / "z")
    (tmp_path / "eva").mkdir()
    torch.save([torch.zeros(3)], tmp_path / "eva" / "a.pt")
    (tmp_path / "eva" / "manifest.csv").write_text("origin,embeddings,target\n")
    with pytest.raises(BagError, match=r"eva.*probsa extract"):
        open_bags(tmp_path / "eva")
    (tmp_path / "eva" / "manifest.csv").unlink()
    with pytest.raises(BagError, match=r"pt_files; .*bags_config\.json"):
        open_bags(tmp_path / "eva")


SETTINGS = {
    "{": "damaged: .* not JSON",
    "[1]": "damaged: .* expected keys and values",
    '{"tile_px": "x"}': "damaged: tile_px is 'x'; .*number or null",
}


@pytest.mark.parametrize("text", SETTINGS)
def test_slideflow_s_settings_that_are_none(tmp_path, text):
    root = foreign.slideflow(tmp_path, slide())
    (root / "bags_config.json").write_text(text)
    refused(InputError, rf"bags_config\.json is {SETTINGS[text]}", open_bags, root)
