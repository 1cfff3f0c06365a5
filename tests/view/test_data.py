"""The data of the page: rasters, tiles, quantities, the list, and what an export writes."""

import base64
import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from support.array_slide import ArraySlide
from support.made_maps import pink, prediction
from support.made_views import SIDE, bags, cells, lesion, write_bags, write_slides
from support.refusals import refused

from probsa.cli import main
from probsa.errors import InputError, OutputExists, RegionError
from probsa.evaluation import SCORE_MEANINGS, read_predictions
from probsa.maps import raster, squares
from probsa.view import ViewData, export_page
from probsa.view.app import static_folder
from probsa.view.export import MARK
from probsa.view.pages import drawing_note
from probsa.view.quantities import as_page, quantities
from probsa.view.rows import list_rows
from probsa.view.scripts import script, without_folders
from probsa.view.tiles import TILE, Pyramid, tile_image

TYPES = {"u1": np.uint8, "i2": np.int16, "i4": np.int32, "f4": np.float32}


def read(script_text: bytes):
    """Return the key and the value of a data script, with its arrays unpacked."""
    match = re.fullmatch(rb"probsa\.put\((\"[^\"]+\"),(.*)\);\n", script_text, re.DOTALL)
    assert match is not None

    def unpack(value):
        if "base64" not in value:
            return value
        return np.frombuffer(base64.b64decode(value["base64"]), TYPES[value["type"]])

    return json.loads(match[1]), json.loads(match[2], object_hook=unpack)


@pytest.fixture
def view(tmp_path):
    data = ViewData(
        write_bags(tmp_path / "preds"), slides=write_slides(tmp_path / "slides"), mpp=0.5
    )
    yield data
    data.close()


def number(data, name: str) -> int:
    return [r.name for r in data.rows].index(name)


def test_the_page_says_how_patches_are_drawn():
    assert drawing_note(squares(lesion()), SIDE) == ""
    assert "overlap" in drawing_note(squares(lesion(), side=2.0 * SIDE), SIDE)
    coords = np.array([[0, 0], [64, 0], [160, 32], [200, 32]])
    free = squares(prediction(coords, np.arange(4.0), stride=64.0))
    cells = raster(free, finest=4)
    np.testing.assert_array_equal(cells.owners[4, 8:], [-1, -1, 2, 2, 2, 3, 3, 3, 3])
    assert " 25 % " in drawing_note(free, cells.cell)
    assert raster(squares(lesion()), longest=4).owners.shape == (3, 4)


def test_tiles_together_are_the_slide():
    image = pink(700, 530)
    slide = ArraySlide(image)
    pyramid = Pyramid.of(slide)
    assert (pyramid.levels, pyramid.tiles(pyramid.levels - 1)) == (11, (3, 3))
    whole = np.zeros_like(image, dtype=float)
    for row in range(3):
        for column in range(3):
            (left, top, right, bottom), scale = pyramid.box(10, column, row)
            assert scale == 1
            whole[int(top) : int(bottom), int(left) : int(right)] = 1
            assert left == max(0, column * TILE - 1)
    assert whole.min() == 1
    np.testing.assert_array_equal(pyramid.level_size(9), (350, 265))
    for address in ((11, 0, 0), (-1, 0, 0), (10, 3, 0), (10, 0, -1)):
        refused(RegionError, re.escape(str(address)), tile_image, slide, pyramid, address)
    slide = ArraySlide(pink(701, 530), mpp=0.5)
    pyramid = Pyramid.of(slide, max_mpp=2.0)
    assert (pyramid.scale, pyramid.size) == (4, (176, 133))
    (left, top, right, bottom), scale = pyramid.box(pyramid.levels - 1, 0, 0)
    assert (left, top, right, bottom, scale) == (0, 0, 704, 532, 4)
    assert Pyramid.of(ArraySlide(pink(64, 64), mpp=None), max_mpp=2.0).scale == 1


def test_quantities_are_the_stored_values_and_missing_ones_have_reasons():
    p = lesion()
    found = quantities(p, column=0)
    np.testing.assert_array_equal(found["mean"].values, p.attention_mean)
    np.testing.assert_array_equal(found["deviation"].values, np.sqrt(p.attention_variance))
    np.testing.assert_array_equal(found["probability"].values, p.instance_probability)
    np.testing.assert_array_equal(found["labels"].values, np.r_[np.nan, p.instance_labels[1:]])
    assert as_page("mean", found["mean"])["range"] == (-4.0, 4.0)
    dirac = {k: as_page(k, q) for k, q in quantities(bags()[4], column=0).items()}
    assert "no variance" in dirac["deviation"]["reason"]
    assert "no probability" in dirac["probability"]["reason"]
    assert "values" not in dirac["contribution"]
    mean = np.arange(8.0).reshape(4, 2)
    p = prediction(None, mean, mean + 1, weight_mean=mean.astype(np.float32))
    for c in (0, 1):
        found = {k: q.values for k, q in quantities(p, column=c).items()}
        np.testing.assert_array_equal(found["mean"], mean[:, c])
        np.testing.assert_array_equal(found["deviation"], np.sqrt(mean[:, c] + 1, dtype="f4"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"score_kind": "logit"}, "different meanings"),
        ({"coords": lesion().coords + 1}, "other coordinates"),
        ({"coords": None}, "other coordinates"),
    ],
)
def test_a_difference_of_scores_that_cannot_be_subtracted_is_refused(change, reason):
    refused(InputError, reason, quantities, lesion(), column=0, other=replace(lesion(), **change))


@pytest.mark.parametrize("own", ["evidence", "logit", "weight", "probability", "relevance"])
@pytest.mark.parametrize("theirs", ["evidence", "logit", "weight", "probability", "relevance"])
def test_what_is_compared_names_which_model_has_which_score(tmp_path, own, theirs):
    if own == theirs:
        p = lesion(score_kind=own)
        assert "difference" in quantities(p, column=0, other=p)
        return
    given = [write_bags(tmp_path / kind, [lesion(score_kind=kind)]) for kind in (own, theirs)]
    data = ViewData(given[0], against=given[1])
    _, page = read(data.values_script(0, 0))
    said = page["difference"]
    first, second = (f"that of {kind} is {SCORE_MEANINGS[kind]}" for kind in (own, theirs))
    assert first in said and second in said
    assert said.index(first) < said.index(second)


def test_the_rows_say_what_is_wrong_and_unsure(tmp_path):
    folder = write_bags(tmp_path / "p")
    (folder / "instances" / "sure.h5").write_bytes(b"no")
    rows = {r.name: r for r in list_rows(read_predictions(folder))}
    assert (rows["lesion"].wrong, rows["lesion"].unsure, rows["lesion"].n) == (False, False, 87)
    assert (rows["sure"].wrong, rows["sure"].call, rows["sure"].label) == (True, "benign", "tumour")
    assert "damaged" in rows["sure"].failed
    assert rows["loose"].wrong is None
    assert rows["empty"].failed == "no tissue in empty.svs"


def test_the_map_of_a_bag_names_why_its_slide_is_missing(view):
    _, page = read(view.map_script(number(view, "sure")))
    assert page["slide"] is None
    assert "has no slide named 'sure'" in page["reason"]
    _, page = read(view.map_script(number(view, "lesion")))
    assert (page["slide"]["width"], page["mpp"], page["reason"]) == (1024, 0.5, "")
    np.testing.assert_array_equal(page["corners"].reshape(-1, 2), cells() * SIDE)


def test_scripts_hold_nothing_that_ends_them():
    key, value = read(script("a", {"x": float("nan"), "y": "</script>\u2028é"}))
    assert (key, value) == ("a", {"x": None, "y": "</script>\u2028é"})
    assert script("a", "\u2028é").isascii()
    assert without_folders("tissue in /a/b c/d.svs: stop") == "tissue in b c/d.svs: stop"
    assert without_folders(r"C:\data\x\y.svs is 1/2 px, see a/b") == "y.svs is 1/2 px, see a/b"


def test_an_export_is_complete_or_not_there_at_all(tmp_path, view, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(type(view), "limits_script", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            export_page(view, out)
    assert [f.name for f in tmp_path.iterdir() if "out" in f.name] == []
    done = export_page(view, out)
    assert done.failures == ()
    assert (out / MARK).is_file()
    names = {f.relative_to(out).as_posix() for f in out.rglob("*") if f.is_file()}
    pages = [number(view, r.name) for r in view.rows if not r.failed]
    assert {f"data/map/{k}.js" for k in pages} <= names
    assert not any("lesion" in name for name in names), "names of bags are no file names"
    refused(OutputExists, "--overwrite", export_page, view, out)
    export_page(view, out, overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    refused(OutputExists, "mine", export_page, view, tmp_path / "mine", overwrite=True)
    k = number(view, "lesion")
    level = max(numbers.get("level", 0) for _, numbers in view.files(k))
    tile = Image.open(done.folder / f"data/tiles/{k}/{level}/1_1.jpg")
    expected = np.asarray(Image.open(tmp_path / "slides" / "lesion.png"))[253:509, 253:509]
    assert np.abs(np.asarray(tile).astype(int) - expected).mean() < 3


def test_what_others_wrote_is_unchanged_and_own_scripts_are_short():
    table = (static_folder() / "VENDORED.md").read_text(encoding="utf-8")
    listed = re.findall(r"\| `([\w.]+)` \|.*`([0-9a-f]{64})`", table)
    assert len(listed) == 2
    for name, digest in listed:
        content = (static_folder() / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest, name
    for path in static_folder().glob("*.js"):
        if path.name == "openseadragon.min.js":
            continue
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 400, path.name
        assert not re.search(r"innerHTML|outerHTML|eval\(|fetch\(|https?://|import ", text)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (("--full",), ("--full", "--export DIR")),
        (("--export", "x", "--open"), ("--open and --port",)),
        (("--export", "x", "--full", "--max-mpp", "1"), ("--max-mpp", "with --full")),
        (("--export", "x", "--max-mpp", "-1"), ("--max-mpp is -1",)),
        (("--slide-mpp", "0.5"), ("--slides DIR",)),
    ],
)
def test_flags_that_have_no_effect_are_refused(tmp_path, capsys, arguments, facts):
    assert main(["view", str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert all(fact in error for fact in facts)


def test_the_command_exports_a_run_and_says_what_failed(tmp_path, capsys):
    preds = write_bags(tmp_path / "p")
    (preds / "instances" / "sure.h5").write_bytes(b"no")
    assert main(["view", str(preds), "--export", str(tmp_path / "out"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [f["bag"] for f in told["failed"]] == ["sure"]
    assert (tmp_path / "out" / "index.html").is_file()


def test_a_call_that_contradicts_its_map_is_explained(tmp_path):
    against = replace(lesion(), contribution=np.full(87, -0.02, np.float32))
    data = ViewData(write_bags(tmp_path / "p", [lesion(), replace(against, name="against")]))
    said = {row.name: data.map_script(k).decode() for k, row in enumerate(data.rows[:2])}
    assert r"attention-weighted pooling adds \u22121.7 to the logit" in said["against"]
    assert '"contradiction":""' in said[lesion().name].replace(": ", ":")


def test_the_list_has_thresholds_and_bags_unlike_training(tmp_path):
    far, near = (replace(p, bag_ood=v) for p, v in zip(bags()[:2], (1.0, 0.99), strict=True))
    rows = list_rows(read_predictions(write_bags(tmp_path / "p", [far, near])))
    assert {r.name: r.unlike for r in rows if not r.failed} == {far.name: True, near.name: False}
    assert {r.threshold for r in rows if not r.failed} == {0.5}


def test_an_export_goes_down_to_the_resolution_of_the_patches_where_they_lie(tmp_path):
    preds = write_bags(tmp_path / "preds")
    slides = write_slides(tmp_path / "slides")
    found = {}
    for fine in (False, True):
        data = ViewData(preds, slides=slides, mpp=0.125, max_mpp=0.5, patch_mpp=fine)
        k = number(data, "lesion")
        tiles = [n for address, n in data.files(k) if address.startswith("tiles")]
        found[fine] = [(n["level"], n["column"], n["row"]) for n in tiles]
        _, page = read(data.map_script(k))
        assert (page["slide"]["maxLevel"], page["slide"]["whole"]) == ((10, 8) if fine else (8, 8))
        assert "0.5 µm per pixel" in page["note"]
        assert page["note"].startswith("Beside the patches") == fine
        data.close()
    assert set(found[False]) < set(found[True])
    corners = cells() * SIDE
    assert {(c, r) for level, c, r in found[True] if level == 10} == {
        (x // TILE, y // TILE)
        for at in corners
        for x in (at[0], at[0] + SIDE)
        for y in (at[1], at[1] + SIDE)
    }
