"""`probsa run`: the same files as the four commands, once more only what is missing."""

import json
import os
import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
from support.made_slides import tissue, write_slide
from support.one_process import use_one_process
from support.refusals import refused

from probsa.cli import main
from probsa.cohorts import FeatureRecipe
from probsa.core import TextTable
from probsa.errors import InputError
from probsa.training import RunFolder, read_run, train
from probsa.workflow import StatedRecipe, finish_run, recipe_of_runs
from probsa.workflow.recipes import check_encoder

ALONE = ("--readers", "0")
EXTRACT = ("--encoder", "handcrafted", *ALONE)
CUT = ("--patch-size", "128", "--mpp", "0.5", "--overlap", "32", "--otsu")
NOTHING = StatedRecipe()


def command(*words, status=0):
    assert main([str(w) for w in words]) == status


def slides(folder, count, *, seed=0):
    for k in range(count):
        image = tissue(420, 420, boxes=[(20, 20, 360, 360)], seed=seed + k)
        write_slide(folder / f"s{k}.tiff", image)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _in_one_process():
    with pytest.MonkeyPatch.context() as patch:
        use_one_process(patch)
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with a run, new slides, and the results of `probsa run` on these."""
    folder = tmp_path_factory.mktemp("home")
    command("patch", slides(folder / "slides", 4), "--out", folder / "work", *CUT, "--workers", 1)
    command("extract", folder / "work", *EXTRACT)
    rows = "".join(f"s{k},{k % 2},{'train' if k < 2 else 'val'}\n" for k in range(4))
    (folder / "labels.csv").write_text(f"bag,label,split\n{rows}")
    data = {"features": str(folder / "work"), "labels": str(folder / "labels.csv")}
    size = {"model": "abmil-probsa-diag", "embed": 4, "attention_dim": 4, "predict_samples": 8}
    where = {"epochs": 1, "device": "cpu", "threads": 1, "tensorboard": False}
    train(read_run(None, {**data, **size, **where}), folder / "run")
    slides(folder / "new", 2, seed=50)
    command("run", folder / "new", "--model", folder / "run", "--out", folder / "out", *ALONE)
    return folder


def values_of(folder):
    found = {}
    for path in sorted((folder / "instances").glob("*.h5")):
        with h5py.File(path) as f:
            found |= {(path.stem, k): f[k][()] for k in f}
    return found


def test_the_results_are_those_of_the_four_commands(home, tmp_path):
    command("patch", home / "new", "--out", tmp_path / "work", *CUT, "--workers", 1)
    command("extract", tmp_path / "work", *EXTRACT)
    command("predict", home / "run", "--features", tmp_path / "work", "--out", tmp_path / "p")
    command("map", tmp_path / "p", "--slides", tmp_path / "work", "--out", tmp_path / "maps")
    for name in ("predictions.csv", "predictions.json"):
        assert (home / "out/predictions" / name).read_bytes() == (
            tmp_path / "p" / name
        ).read_bytes()
    one = values_of(home / "out/predictions")
    other = values_of(tmp_path / "p")
    assert one.keys() == other.keys() and len({bag for bag, _ in one}) == 2
    for key in one:
        np.testing.assert_array_equal(one[key], other[key])
    for picture in ("s0.png", "s1.png"):
        assert (home / "out/maps" / picture).read_bytes() == (
            tmp_path / "maps" / picture
        ).read_bytes()


def test_the_maps_of_a_run_lie_over_the_slides_of_its_features(home, tmp_path):
    run = RunFolder(shutil.copytree(home / "run", tmp_path / "run"))
    trained = finish_run(run, bootstrap=0, extras=False)
    assert (trained.maps, trained.failures) == (2, [])
    command("map", run.predictions, "--slides", home / "work", "--out", tmp_path / "maps")
    for name in ("s2.png", "s3.png"):
        assert (run.maps / name).read_bytes() == (tmp_path / "maps" / name).read_bytes()


def test_a_repeated_command_makes_only_what_is_missing(home, capsys):
    again = ("run", home / "new", "--model", home / "run", "--out", home / "out", *ALONE)
    table = home / "out/predictions/predictions.csv"
    drawn, missing, stale = (home / "out/maps" / f"s{k}.png" for k in (0, 1, 1))
    page = home / "out/page/index.html"
    missing.unlink()
    times = [p.stat().st_mtime_ns for p in (table, drawn, page)]
    command(*again, "--json")
    answer = json.loads(capsys.readouterr().out)
    assert answer["kept"] is True and answer["bags"] == 2 and answer["failed"] == []
    assert [p.stat().st_mtime_ns for p in (table, drawn, page)] == times and missing.is_file()
    before = table.stat().st_mtime_ns - 10**9  # a map and a page of earlier predictions
    for path in (stale, page):
        os.utime(path, ns=(before, before))
    command(*again)
    assert all(path.stat().st_mtime_ns > before for path in (stale, page))
    capsys.readouterr()
    command(*again, "--other-features", "--json")  # an option that changes predictions
    assert json.loads(capsys.readouterr().out)["kept"] is False
    image = tissue(420, 420, boxes=[(20, 20, 360, 360)], seed=99)
    write_slide(home / "new/s2.tiff", image)
    command(*again, "--json")
    answer = json.loads(capsys.readouterr().out)
    assert answer["kept"] is False and answer["bags"] == 3
    assert [row["bag"] for row in TextTable.read(table).rows] == ["s0", "s1", "s2"]


def test_a_slide_that_cannot_be_read_is_named_and_the_others_are_predicted(home, tmp_path, capsys):
    slides(tmp_path / "new", 1, seed=70)
    (tmp_path / "new/torn.tiff").write_bytes((tmp_path / "new/s0.tiff").read_bytes()[:300])
    command(
        "run",
        tmp_path / "new",
        "--model",
        home / "run",
        "--out",
        tmp_path / "out",
        *ALONE,
        "--json",
        status=1,
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["bags"] == 1 and [f["bag"] for f in answer["failed"]] == ["torn"]
    assert (tmp_path / "out/maps/s0.png").is_file()


def test_what_could_not_be_drawn_is_named_until_it_is_drawn(home, tmp_path, capsys):
    new = slides(tmp_path / "new", 2, seed=80)
    again = ("run", new, "--model", home / "run", "--out", tmp_path / "out", *ALONE, "--json")
    command(*again)
    picture = tmp_path / "out/maps/s1.png"
    over_the_slide = picture.read_bytes()
    (new / "s1.tiff").rename(tmp_path / "away.tiff")
    picture.unlink()
    for _ in range(2):  # the second call finds a map, which was drawn without the slide
        capsys.readouterr()
        command(*again, status=1)
        answer = json.loads(capsys.readouterr().out)
        assert "s1" in {failure["bag"] for failure in answer["failed"]}
        assert picture.read_bytes() != over_the_slide
    (tmp_path / "away.tiff").rename(new / "s1.tiff")
    command(*again)
    assert picture.read_bytes() == over_the_slide


def test_wrong_inputs_are_refused_before_anything_is_written(home, tmp_path, capsys):
    out = tmp_path / "out"
    for words, named in (
        ((tmp_path / "none", "--model", home / "run"), str(tmp_path / "none")),
        ((home / "new", "--model", home / "new"), str(home / "new")),
        ((home / "new", "--model", home / "run", "--mpp", 1.0), "--mpp"),
    ):
        command("run", *words, "--out", out, status=2)
        assert named in capsys.readouterr().err and not out.exists()


def test_other_weights_of_the_encoder_are_refused_before_anything_is_cut(home, tmp_path, capsys):
    run = RunFolder(home / "run")
    stored = run.recipe_file.read_text()
    run.recipe_file.write_text(json.dumps(json.loads(stored) | {"identity": "handcrafted@0123"}))
    try:
        command("run", home / "new", "--model", run.path, "--out", tmp_path / "out", status=2)
    finally:
        run.recipe_file.write_text(stored)
    assert "handcrafted@0123" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_slides_are_not_given_to_a_model_of_scans(home, tmp_path):
    run = RunFolder(home / "run")
    recipe, _ = recipe_of_runs([run.path], NOTHING)
    stored = run.recipe_file.read_text()
    of_scans = replace(recipe, kind="ct", patches=None, windows="brain,subdural,bone")
    run.recipe_file.write_text(json.dumps(of_scans.to_dict()))
    try:
        command("run", home / "new", "--model", run.path, "--out", tmp_path / "out", status=2)
    finally:
        run.recipe_file.write_text(stored)
    assert not (tmp_path / "out" / "predictions").exists()


def test_the_recipe_of_a_run_is_how_its_features_were_made(home):
    recipe, remark = recipe_of_runs([home / "run"], NOTHING)
    assert remark == "" and recipe.encoder == "handcrafted" and recipe.kind == "slide"
    assert recipe.patches is not None and recipe.patches.overlap == 32
    assert recipe.patches.tissue.method == "otsu"
    assert FeatureRecipe.from_dict(json.loads(json.dumps(recipe.to_dict())), where="f") == recipe


def test_a_run_without_a_recipe_needs_to_be_told_what_it_does_not_state(home):
    run = RunFolder(home / "run")
    stored = run.recipe_file.read_text()
    about = run.features_file.read_text()
    run.recipe_file.unlink()
    try:
        recipe, remark = recipe_of_runs([run.path], NOTHING)
        assert recipe.patches is not None and recipe.patches.size == 128
        assert recipe.patches.mpp == 0.5 and remark
        run.features_file.unlink()
        with pytest.raises(InputError, match=r"--encoder.*--patch-size.*--mpp"):
            recipe_of_runs([run.path], NOTHING)
        told = StatedRecipe(encoder="handcrafted", patch_size=64, mpp=1.0)
        recipe, _ = recipe_of_runs([run.path], told)
        assert recipe.patches is not None and (recipe.patches.size, recipe.patches.mpp) == (64, 1)
        run.recipe_file.write_text('{"kind": "film"}')
        with pytest.raises(InputError, match=r"recipe\.json"):
            recipe_of_runs([run.path], NOTHING)
    finally:
        run.recipe_file.write_text(stored)
        run.features_file.write_text(about)


def test_another_encoder_is_refused_before_a_slide_is_cut(home, tmp_path, capsys):
    shutil.copytree(home / "run", tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    run.recipe_file.unlink()
    given = ("run", home / "new", "--model", run.path, "--out", tmp_path / "out", *CUT[:4])
    command(*given, "--encoder", "resnet50", status=2)
    error = capsys.readouterr().err
    assert all(fact in error for fact in ("resnet50", "2048", "128", "handcrafted"))
    assert not (tmp_path / "out").exists()
    run.features_file.unlink()  # only the number of features is known
    check_encoder([run.path], "handcrafted", any_name=False)
    refused(InputError, "128", check_encoder, [run.path], "resnet50", any_name=True)
