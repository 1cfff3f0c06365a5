"""The commands of the README, from slides and a head CT to maps, and a folder of odd files."""

import json
import zipfile

import numpy as np
import pytest
from PIL import Image
from support.made_slides import tissue, write_slide
from support.one_process import use_one_process

from probsa.cli import main
from probsa.core import TextTable, read_bag
from probsa.evaluation import read_predictions

ALONE = ("--readers", "0", "--threads", "1")
EXTRACT = ("--encoder", "handcrafted", *ALONE)
CUT = ("--patch-size", "256", "--mpp", "0.5", "--workers", "1")


def run(*words, status=0):
    assert main([str(w) for w in words]) == status


def train(work, labels, out):
    run(
        "train",
        "--features",
        work,
        "--labels",
        labels,
        "--model",
        "abmil-probsa-diag",
        "--model.embed",
        8,
        "--epochs",
        1,
        "--batch-size",
        4,
        "--device",
        "cpu",
        "--tensorboard",
        "false",
        "--maps",
        "none",
        "--out",
        out,
    )


def width(path):
    with Image.open(path) as image:
        return image.width


def write_labels(path, names):
    rows = "".join(f"{name},{k % 2}\n" for k, name in enumerate(names))
    path.write_text(f"bag,label\n{rows}")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train a model on slides; how good it is does not matter here."""
    folder = tmp_path_factory.mktemp("trained")
    for k in range(10):
        image = tissue(600, 600, boxes=[(0, 0, 512, 512)], seed=k)
        write_slide(folder / "slides" / f"s{k}.tiff", image)
    with pytest.MonkeyPatch.context() as patch:
        use_one_process(patch)
        run("patch", folder / "slides", "--out", folder / "work", *CUT)
    run("extract", folder / "work", *EXTRACT)
    labels = write_labels(folder / "labels.csv", [f"s{k}" for k in range(10)])
    train(folder / "work", labels, folder / "run")
    return folder / "run"


def test_slides_to_maps(trained, shared_data, tmp_path, capsys):
    table = tmp_path / "mpp.csv"
    table.write_text("slide,mpp\nTCGA-CR-7395-01A-01-TS1,0.5\n")
    work = tmp_path / "work"
    names = ["CMU-1-Small-Region", "CMU-1-Small-Region_derived_pyramid"]
    run("patch", shared_data / "wsi", "--out", work, *CUT, "--slide-mpp", table)
    run("extract", work, *EXTRACT)
    run("predict", trained, "--features", work, "--out", tmp_path / "preds")
    run(
        "map",
        tmp_path / "preds",
        "--slides",
        work,
        "--out",
        tmp_path / "maps",
        "--geojson",
        "tiles",
        "--longest",
        300,
    )
    bags = read_predictions(tmp_path / "preds").bags
    assert set(bags) == {*names, "TCGA-CR-7395-01A-01-TS1"}
    for bag in bags:
        stored = read_bag(work / "20x_256px_0px_overlap" / "features_handcrafted" / f"{bag}.h5")
        tiles = json.loads((tmp_path / "maps" / f"{bag}.geojson").read_text())["features"]
        assert len(tiles) == len(stored.features)
        assert tiles[0]["geometry"]["coordinates"][0][0] == stored.coords[0].tolist()
        assert {"mean (logit)", "std (logit)", "weight"} <= tiles[0]["properties"][
            "measurements"
        ].keys()
        assert width(tmp_path / "maps" / f"{bag}.png") > 600
    # a slide with and without a pyramid has the same tissue, apart from patches at the border
    one, other = (
        read_bag(work / "20x_256px_0px_overlap" / "features_handcrafted" / f"{n}.h5").coords
        for n in names
    )
    differ = set(map(tuple, one.tolist())) ^ set(map(tuple, other.tolist()))
    assert len(one) > 40 and len(differ) <= 2


def test_a_head_ct_to_maps(shared_data, tmp_path):
    import nibabel

    folder = tmp_path / "scans"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for k in range(10):
        volume = rng.normal(30, 20, (64, 64, 6)).astype(np.float32)
        volume[:8] = -1000
        axes = np.diag([-3.0, -3.0, 5.0, 1.0])
        nibabel.save(nibabel.Nifti1Image(volume, axes), folder / f"s{k}.nii.gz")
    run("patch", folder, "--out", tmp_path / "work", "--workers", 1)
    run("extract", tmp_path / "work", *EXTRACT)
    last = read_bag(tmp_path / "work" / "slices" / "features_handcrafted" / "s9.h5")
    np.testing.assert_allclose(np.sort(last.intensity), np.sort(volume.mean((0, 1))), rtol=1e-4)
    labels = write_labels(tmp_path / "labels.csv", [f"s{k}" for k in range(10)])
    train(tmp_path / "work", labels, tmp_path / "run")
    with zipfile.ZipFile(shared_data / "ct_volumes" / "ge_head_ct_dicom.zip") as z:
        z.extractall(tmp_path / "ge" / "head")
    # the order does not depend on the names of the files
    paths = sorted((tmp_path / "ge" / "head").rglob("*.dcm"))
    for path, number in zip(paths, rng.permutation(len(paths)), strict=True):
        path.rename(path.parent / f"shuffled{number:02}.dcm")
    run("patch", tmp_path / "ge", "--out", tmp_path / "ge_work")
    run("extract", tmp_path / "ge_work", *EXTRACT)
    stored = read_bag(tmp_path / "ge_work" / "slices" / "features_handcrafted" / "head.h5")
    assert stored.kind == "ct" and stored.coords.shape == (28, 1)
    assert (np.diff(stored.coords[:, 0]) > 0).all()
    notes = TextTable.read(tmp_path / "ge_work" / "slices" / "patch.csv").rows[0]["notes"]
    assert "18.5" in notes
    run("predict", tmp_path / "run", "--features", tmp_path / "ge_work", "--out", tmp_path / "p")
    run("map", tmp_path / "p", "--slides", tmp_path / "ge_work", "--out", tmp_path / "maps")
    assert width(tmp_path / "maps" / "head.png") > 600


def test_a_folder_of_odd_files(shared_data, tmp_path, capsys):
    folder = tmp_path / "odd"
    whole = (shared_data / "wsi" / "CMU-1-Small-Region.svs").read_bytes()
    folder.mkdir()
    (folder / "truncated.svs").write_bytes(whole[: len(whole) // 2])
    (folder / "text.svs").write_text("this is no slide\n" * 50)
    (folder / "empty.dcm").write_bytes(b"")
    write_slide(folder / "glass.tiff", np.full((900, 900, 3), 244, np.uint8))
    pink = tissue(900, 900, boxes=[(0, 0, 700, 700)])
    write_slide(folder / "unknown.tiff", pink, mpp=None)
    write_slide(folder / "good.tiff", pink)
    write_slide(folder / "one.tiff", tissue(300, 300, boxes=[(0, 0, 290, 290)]))
    run("patch", folder, "--out", tmp_path / "work", *CUT, status=1)
    errors = capsys.readouterr().err
    rows = {
        r["name"]: r
        for r in [
            *TextTable.read(tmp_path / "work" / "20x_256px_0px_overlap" / "patch.csv").rows,
            *TextTable.read(tmp_path / "work" / "slices" / "patch.csv").rows,
        ]
    }
    assert {n: r["status"] for n, r in rows.items()} == {
        "truncated": "failed",
        "text": "failed",
        "empty": "failed",
        "glass": "no_tissue",
        "unknown": "failed",
        "good": "done",
        "one": "done",
    }
    assert rows["one"]["instances"] == "1" and "--slide-mpp" in rows["unknown"]["reason"]
    assert "truncated.svs" in rows["truncated"]["reason"] and "text.svs" in rows["text"]["reason"]
    assert all(name in errors for name in ("truncated", "text", "glass", "unknown"))
    # a slide that failed before is not a failure here
    run("extract", tmp_path / "work", "--set", "20x_256px_0px_overlap", *EXTRACT)


def _json(capsys, *words, status):
    capsys.readouterr()
    run(*words, "--json", status=status)
    return capsys.readouterr().out


def test_wrong_usage(tmp_path, monkeypatch, capsys):
    use_one_process(monkeypatch)
    write_slide(tmp_path / "s" / "x.tiff", tissue(600, 600, boxes=[(0, 0, 500, 500)]))
    patch = ("patch", tmp_path / "s", "--out", tmp_path / "w")
    for words, named in (
        ((*patch, "--patch-size", 256, "--overlap", 256), "overlap"),
        ((*patch, "--shard", "3/2"), "--shard"),
        ((*patch, "--workers", 0), "--workers"),
        ((*patch, "--contours", tmp_path / "none"), "--contours"),
        (("extract", tmp_path / "s"), str(tmp_path / "s")),
    ):
        run(*words, status=2)
        assert named in capsys.readouterr().err, words
    apart = (*patch[:-1], tmp_path / "v")
    run(*apart, "--level", 3, status=1)  # only the slide without this level fails
    assert "level 3" in capsys.readouterr().err
    run(*patch, "--patch-size", 128)
    for words, named in (
        (("--encoder", "resnet50"), "--weights"),
        (("--windows", "brain"), "'brain'"),
        (("--set", "20x"), "'20x'"),
    ):
        run("extract", tmp_path / "w", *words, "--threads", 1, status=2)
        assert named in capsys.readouterr().err, words


def test_a_dry_run_writes_nothing(tmp_path, monkeypatch, capsys):
    use_one_process(monkeypatch)
    for k in range(3):
        image = tissue(600, 600, boxes=[(0, 0, 512, 512)], seed=k)
        write_slide(tmp_path / "s" / f"x{k}.tiff", image)
    patch = ("patch", tmp_path / "s", "--out", tmp_path / "w", "--patch-size", 128)
    said = json.loads(_json(capsys, *patch, "--dry-run", status=0))
    assert (said["items"], said["instances"]) == (3, 48) and not (tmp_path / "w").exists()
    part = json.loads(_json(capsys, *patch, "--dry-run", "--shard", "0/2", status=0))
    assert (part["items"], part["instances"]) == (2, 32)
    square = [[0, 0], [256, 0], [256, 256], [0, 256], [0, 0]]
    edited = {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [square]}}
    (tmp_path / "edited").mkdir()
    for k in range(3):
        (tmp_path / "edited" / f"x{k}.geojson").write_text(json.dumps(edited))
    drawn = _json(capsys, *patch, "--dry-run", "--contours", tmp_path / "edited", status=0)
    assert json.loads(drawn)["instances"] == 12
    run(*patch)
    before = sorted((tmp_path / "w").rglob("*"))
    said = json.loads(_json(capsys, "extract", tmp_path / "w", "--dry-run", *EXTRACT, status=0))
    assert (said["items"], said["instances"]) == (3, 48) and said["seconds"] > 0
    assert said["bytes"] == 48 * (128 * 4 + 16)
    assert sorted((tmp_path / "w").rglob("*")) == before
