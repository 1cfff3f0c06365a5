"""`probsa map` over slides and scans: files, messages and the exit status."""

import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from support.array_slide import ArraySlide
from support.made_maps import (
    OneSource,
    bag,
    lattice,
    of_classes,
    pink,
    prediction,
    rgb,
    scan_bag,
    write_folder,
)
from support.refusals import refused

from probsa.cli import main
from probsa.cohorts import PatchSet, Record
from probsa.cohorts.coordinates import Coordinates, write_coordinates
from probsa.errors import InputError, SlideError
from probsa.evaluation import available_scores, map_trust
from probsa.maps import (
    DOUBTS,
    VARIANCES,
    CohortSources,
    OverlaySettings,
    checked_squares,
    draw_map,
    map_limits,
    render_folder,
    save_figure,
    sources_of_features,
    squares,
)
from probsa.maps.draw import heading
from probsa.maps.picture import blend, slide_canvas
from probsa.maps.quantities import quantities
from probsa.maps.scale import common_limits
from probsa.maps.sources import MOST_PIXELS, chosen_scale, draw_over, shown_box
from probsa.patches import Patches
from probsa.slides import list_scans, open_scan


def slide_file(folder, name="a", **size):
    folder.mkdir(exist_ok=True, parents=True)
    image = pink(**size)
    Image.fromarray(image).save(folder / f"{name}.png")
    return image


def run(capsys, *arguments):
    status = main(["map", *map(str, arguments)])
    output = capsys.readouterr()
    return status, output.out + output.err


def pictures(folder):
    return sorted(f.name for f in folder.glob("[!.]*"))


def plain(p, path, *others):
    """The map without a slide, on the scale of the bag and others of its folder."""
    spread = f"±: {p.of_task.words.page.spread_hint}."
    title = f"{heading(p).line}\n{map_trust({}, map=available_scores(p)[0]).line}"
    limits = common_limits([p, *others])
    save_figure(draw_map(p, limits=limits, title=title, caption=spread), path)
    return np.asarray(Image.open(path))


def overlay(image, p, quantity, *, scale=1.0, side=None, **how):
    """The picture that `--overlays` writes."""
    picture = ArraySlide(image).region((0.0, 0.0, 640.0, 512.0), scale=scale)
    return blend(slide_canvas(picture, squares(p, side=side), **how), quantity)


def pixels(path):
    return np.asarray(Image.open(path))


def test_a_folder_of_slides_is_drawn_over(tmp_path, capsys):
    image = slide_file(tmp_path / "slides")
    p = replace(bag(lattice()), name="a")
    preds = write_folder(tmp_path / "p", p)
    out = tmp_path / "maps"
    flags = "--overlays --longest 640 --alpha 0.5 --geojson tiles --variances --scale per-bag"
    where = ("--out", out, "--slides", tmp_path / "slides")
    status, _ = run(capsys, preds, *where, *flags.split())
    assert status == 0
    assert pictures(out) == ["a.geojson", "a.png", "a_doubt.png", "a_mean.png", "a_variance.png"]
    for q in quantities(p, also=(*DOUBTS, *VARIANCES)):
        drawn = pixels(out / f"a_{q.key}.png")
        np.testing.assert_array_equal(drawn, overlay(image, p, q, alpha=0.5))
        np.testing.assert_array_equal(drawn[:96], image[:96])
    assert pixels(out / "a.png").shape[1] > 2 * 640
    assert len(json.loads((out / "a.geojson").read_text())["features"]) == 30


def test_the_resolution_sets_the_pixels_of_the_overlay(tmp_path, capsys):
    slide_file(tmp_path / "slides")
    preds = write_folder(tmp_path / "p", replace(bag(lattice()), name="a"))
    base = (preds, "--slides", tmp_path / "slides", "--overlays")
    out = tmp_path / "maps"
    status, said = run(capsys, *base, "--out", out, "--resolution", 2)
    assert status == 1
    for part in ("left out a: ", "--resolution", "--slide-mpp"):
        assert part in said
    assert pictures(out) == ["a.png"]
    status, _ = run(capsys, *base, "--out", out, "--resolution", 2, "--slide-mpp", 0.5)
    assert status == 0
    assert pixels(out / "a_mean.png").shape == (128, 160, 3)


NAMES = ["126", "0126", "126_b", "130_26", "patient 7"]


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_no_scans_and_are_not_suggested_for_one(tmp_path, name):
    for folder in ("130_26", "126_1", "patient_7"):
        slide_file(tmp_path / "jpg" / folder, name=f"{folder}_1")
    p = replace(scan_bag([0, 5, 10]), name=name)
    sources = CohortSources(tmp_path / "jpg")
    with pytest.raises(InputError) as caught:
        sources.record(p)
    said = str(caught.value)
    assert "Did you mean" not in said
    assert all(fact in said for fact in (repr(name), "3 slides", "DICOM", "NIfTI"))


@pytest.mark.parametrize("name", ["s_012", "s12", "S_12", "126", "s_13"])
def test_a_suggested_slide_has_the_numbers_of_the_bag(tmp_path, name):
    for number in (12, 130, 26):
        slide_file(tmp_path / "slides", name=f"s_{number}")
    with pytest.raises(InputError) as caught:
        CohortSources(tmp_path / "slides").record(replace(bag(lattice()), name=name))
    has_the_numbers = name in {"s_012", "s12", "S_12"}
    assert ("'s_12'" in str(caught.value)) == has_the_numbers
    assert "'s_130'" not in str(caught.value) and "'s_26'" not in str(caught.value)
    assert "3 other slides" in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("gone", "named 'a'. Did you mean 'aa'?"),
        ("damaged", "a.png"),
        ("another", "begin at x 64 to 384"),
    ],
)
def test_without_its_slide_the_plain_map_is_drawn_and_the_reason_said(
    tmp_path, capsys, damage, said
):
    slides = tmp_path / "slides"
    slide_file(slides, name="b")
    width = 256 if damage == "another" else 640
    slide_file(slides, name="aa" if damage == "gone" else "a", width=width)
    if damage == "damaged":
        whole = (slides / "a.png").read_bytes()
        (slides / "a.png").write_bytes(whole[: len(whole) // 3])
    a, b = (replace(bag(lattice()), name=name) for name in "ab")
    preds = write_folder(tmp_path / "p", a, b)
    out = tmp_path / "maps"
    status, text = run(capsys, preds, "--out", out, "--slides", slides, "--json")
    assert status == 1
    (failed,) = json.loads(text)["failed"]
    assert failed["bag"] == "a"
    assert failed["reason"].startswith("its slide or scan")
    assert said in failed["reason"]
    np.testing.assert_array_equal(pixels(out / "a.png"), plain(a, tmp_path / "plain.png", b))
    assert pixels(out / "b.png").shape != pixels(out / "a.png").shape


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--alpha 0", "alpha is 0"),
        ("--alpha 1.5", "alpha is 1.5"),
        ("--longest 20", "--longest is 20"),
        ("--resolution -1", "--resolution is -1"),
        ("--slide-mpp 0", "--slide-mpp"),
        ("--longest 900 --resolution 2", "--longest is not allowed with --resolution"),
    ],
)
def test_values_that_make_no_sense_are_refused(tmp_path, capsys, arguments, words):
    slide_file(tmp_path / "slides")
    out = tmp_path / "m"
    preds = write_folder(tmp_path / "p", replace(bag(lattice()), name="a"))
    where = ("--out", out, "--slides", tmp_path / "slides")
    status, text = run(capsys, preds, *where, *arguments.split())
    assert status == 2 and words in text and not out.exists()


@pytest.mark.parametrize(
    "arguments",
    ["--overlays", "--alpha 0.5", "--longest 900", "--slide-mpp 1"],
)
def test_options_of_pictures_need_slides(tmp_path, capsys, arguments):
    out = tmp_path / "m"
    preds = write_folder(tmp_path / "p", replace(bag(lattice()), name="a"))
    status, text = run(capsys, preds, "--out", out, *arguments.split())
    assert status == 2 and not out.exists()
    assert arguments.split()[0] in text and "--slides" in text


def test_slides_that_do_not_exist_are_named(tmp_path, capsys):
    out = tmp_path / "m"
    preds = write_folder(tmp_path / "p", replace(bag(lattice()), name="a"))
    status, text = run(capsys, preds, "--out", out, "--slides", "none")
    assert status == 2 and "none" in text and not out.exists()


def test_a_fixed_scale_is_kept_over_slides(tmp_path):
    slides = tmp_path / "slides"
    image = slide_file(slides)
    a = replace(bag(lattice()), name="a")
    b = replace(bag(lattice(), mean=np.arange(30.0) * 4), name="b")
    preds = write_folder(tmp_path / "p", a, b)
    over = CohortSources(slides), OverlaySettings(overlays=True, longest=640)
    failed = render_folder(preds, tmp_path / "m", bags=["a"], scale="fixed", over=over)
    assert failed == []
    mean = next(quantities(a, map_limits(preds), also=VARIANCES))
    expected = overlay(image, a, mean)
    np.testing.assert_array_equal(pixels(tmp_path / "m" / "a_mean.png"), expected)
    per_bag = overlay(image, a, next(quantities(a, also=VARIANCES)))
    assert np.abs(per_bag.astype(int) - expected).max() > 20


def test_a_page_stays_small_where_the_overlay_is_large(tmp_path, monkeypatch):
    monkeypatch.setattr("probsa.maps.sources.LONGEST_PANEL", 160)
    p = bag(lattice())
    how = OverlaySettings(longest=640, overlays=True)
    assert draw_over(p, tmp_path, sources=OneSource(ArraySlide(pink())), how=how) == ""
    assert pixels(tmp_path / "bag_mean.png").shape == (512, 640, 3)
    assert pixels(tmp_path / "bag.png").shape[1] < 4 * 640


def test_what_could_not_be_decoded_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("probsa.slides._base.BLOCK", 256)
    slide = ArraySlide(pink(), broken=[(300, 300, 5, 5)], name="torn")
    said = draw_over(
        bag(lattice()), tmp_path, sources=OneSource(slide), how=OverlaySettings(longest=640)
    )
    assert "1 of 6 parts of torn.tiff" in said
    assert (tmp_path / "bag.png").is_file()
    preds = write_folder(tmp_path / "p", bag(lattice()))
    over = OneSource(slide), OverlaySettings(longest=640)
    assert render_folder(preds, tmp_path / "m", over=over) == [("bag", said)]


def test_one_overlay_a_class_and_none_of_what_has_no_variance(tmp_path):
    p = bag(lattice())
    zero = np.zeros(30, np.float32)
    silent = replace(p, attention_variance=zero, weight_above_uniform=None)
    how = OverlaySettings(longest=640, overlays=True)
    draw_over(silent, tmp_path / "a", sources=OneSource(ArraySlide(pink())), how=how)
    assert pictures(tmp_path / "a") == ["bag.png", "bag_mean.png"]
    both = replace(p, instance_labels=np.zeros(30, np.int64))
    both = of_classes(both, p.attention_mean, -p.attention_mean, probability=[0.2, 0.8])
    draw_over(both, tmp_path / "b", sources=OneSource(ArraySlide(pink())), how=how)
    names = [f"bag_{q}_class{c}.png" for q in ("doubt", "mean") for c in (0, 1)]
    assert pictures(tmp_path / "b") == ["bag.png", *names]
    first_patch = np.s_[100:150, 70:120]
    last_patch = np.s_[356:406, 390:440]
    upwards = rgb("mean", 1.0) - rgb("mean", 0.0)
    # the score of one class rises from the first patch to the last, that of the other falls
    for class_index, direction in ((0, 1), (1, -1)):
        picture = pixels(tmp_path / "b" / f"bag_mean_class{class_index}.png").astype(int)
        difference = picture[last_patch].mean((0, 1)) - picture[first_patch].mean((0, 1))
        assert np.sign(upwards @ difference) == direction


# --- work folders -----------------------------------------------------------------------------


def cut(coords, *, size=64, overlap=0, slide=(640, 512), mpp=0.5) -> Patches:
    return Patches(
        coords=coords,
        size=size,
        size_level0=float(size),
        overlap=overlap,
        mpp=mpp,
        mpp_level0=mpp,
        slide_size=slide,
    )


def work_folder(path, sets, *, source, name="a", mpp=0.5):
    for folder, patches in sets.items():
        s = PatchSet(path / folder)
        s.path.mkdir(parents=True)
        s.settings_file.write_text("{}")
        attributes = {**patches.attributes, "size_level0": patches.size_level0}
        coordinates = Coordinates(coords=patches.coords, attributes=attributes, made_with="x")
        write_coordinates(s.patches_file(name), coordinates)
        record = Record(name=name, kind="slide", source=str(source), status="done", mpp=mpp)
        record.write(s.record("patch", name))
    return path


def test_a_work_folder_knows_slide_resolution_and_overlap(tmp_path, capsys):
    slide_file(tmp_path / "elsewhere", name="slide")
    coords = lattice()
    work = work_folder(
        tmp_path / "work",
        {
            "20x_32px_0px_overlap": cut(lattice(9, 9, at=(64, 97)), size=32),
            "20x_128px_64px_overlap": cut(coords, size=128, overlap=64),
        },
        source=tmp_path / "elsewhere" / "slide.png",
    )
    p = replace(bag(coords[2:]), name="a")  # two patches could not be read
    patches = CohortSources(work).patches(p)
    assert patches is not None
    assert (patches.size, patches.stride) == (128, 64)
    preds = write_folder(tmp_path / "p", p)
    out = tmp_path / "m"
    status, said = run(
        capsys,
        preds,
        *("--out", out, "--slides", work),
        *["--overlays", "--resolution", "1", "--geojson", "tiles"],
    )
    assert (status, "left out" in said) == (0, False)
    image = pixels(tmp_path / "elsewhere" / "slide.png")
    mean = next(quantities(p, common_limits([p])))
    expected = overlay(image, p, mean, scale=2.0, side=128.0)
    np.testing.assert_array_equal(pixels(out / "a_mean.png"), expected)
    ring = json.loads((out / "a.geojson").read_text())["features"][0]["geometry"]["coordinates"][0]
    assert ring[0] == coords[2].tolist()
    assert ring[2] == (coords[2] + 128).tolist()


@pytest.fixture
def work_with_features(tmp_path):
    """A work folder of the slide `a` with a folder of features."""
    slide_file(tmp_path / "slides")
    work = work_folder(tmp_path / "w", {"s": cut(lattice())}, source=tmp_path / "slides" / "a.png")
    (work / "s" / "features_resnet50").mkdir()
    return work


@pytest.mark.parametrize("features", [".", "s", "s/features_resnet50"])
def test_features_in_a_work_folder_tell_their_slides(work_with_features, features):
    found = sources_of_features(work_with_features / features)
    assert found is not None and found.folder == work_with_features
    p = replace(bag(lattice()), name="a")
    assert found.is_at_hand(p) and not found.is_at_hand(replace(p, name="b"))


def test_maps_lie_over_the_slides_that_are_at_hand(work_with_features, tmp_path):
    found = sources_of_features(work_with_features / "s/features_resnet50")
    p = replace(bag(lattice()), name="a")
    how = OverlaySettings(where_at_hand=True)
    preds = write_folder(tmp_path / "p", p, replace(p, name="b"))
    assert render_folder(preds, tmp_path / "over", over=(found, how)) == []
    assert render_folder(preds, tmp_path / "plain") == []
    pages = {
        (k, name): pixels(tmp_path / k / f"{name}.png") for k in ("over", "plain") for name in "ab"
    }
    assert pages["over", "a"].shape != pages["plain", "a"].shape
    np.testing.assert_array_equal(pages["over", "b"], pages["plain", "b"])
    (tmp_path / "slides" / "a.png").unlink()
    assert render_folder(preds, tmp_path / "gone", over=(found, how)) == []
    np.testing.assert_array_equal(pixels(tmp_path / "gone" / "a.png"), pages["plain", "a"])


def test_features_elsewhere_tell_no_slides(tmp_path):
    (tmp_path / "set" / "features").mkdir(parents=True)
    (tmp_path / "set" / "settings.json").write_text("{}")
    assert sources_of_features(tmp_path / "set" / "features") is None
    assert sources_of_features(tmp_path / "none") is None


def test_a_slide_that_was_replaced_since_is_refused(tmp_path):
    slide_file(tmp_path / "slides", width=800, height=512)
    patches = cut(lattice())
    work = work_folder(tmp_path / "w", {"s": patches}, source=tmp_path / "slides" / "a.png")
    p = replace(bag(lattice()), name="a")
    with pytest.raises(InputError, match=r"640 × 512.* 800 × 512"):
        draw_over(p, tmp_path, sources=CohortSources(work), how=OverlaySettings())
    (tmp_path / "slides" / "a.png").unlink()
    preds = write_folder(tmp_path / "p", p)
    over = CohortSources(work), OverlaySettings()
    ((_, reason),) = render_folder(preds, tmp_path / "m", over=over)
    assert "a.png" in reason
    assert (tmp_path / "m" / "a.png").is_file()


# --- scans ------------------------------------------------------------------------------------


def test_a_folder_of_series_is_drawn_slice_by_slice(tmp_path, capsys, shared_data):
    with zipfile.ZipFile(shared_data / "ct_volumes" / "ge_head_ct_dicom.zip") as z:
        z.extractall(tmp_path / "studies" / "head")
    (source,) = list_scans(tmp_path / "studies").sources
    positions = open_scan(source).positions
    p = replace(scan_bag(positions), name=source.name)
    wrong = replace(scan_bag(np.arange(28)), name=source.name)
    base = ("--slides", tmp_path / "studies")
    status, _ = run(capsys, write_folder(tmp_path / "p", p), "--out", tmp_path / "m", *base)
    assert status == 0
    drawn = pixels(tmp_path / "m" / f"{p.name}.png")
    assert drawn.shape[0] > 1180  # four rows of slices and a plot
    wrong_folder = write_folder(tmp_path / "q", wrong)
    status, said = run(capsys, wrong_folder, "--out", tmp_path / "n", *base, "--geojson", "tiles")
    assert status == 1
    assert f"nearest of its {len(positions)} lies" in said
    assert "GeoJSON file" in said and "its instances are slices" in said
    assert not list((tmp_path / "n").glob("*.geojson"))
    np.testing.assert_array_equal(
        pixels(tmp_path / "n" / f"{p.name}.png"), plain(wrong, tmp_path / "plain.png")
    )


def test_bags_without_coordinates_keep_their_map(tmp_path):
    slide_file(tmp_path / "slides", name="bag")
    p = prediction(None, np.arange(5.0))
    preds = write_folder(tmp_path / "p", p)
    over = CohortSources(tmp_path / "slides"), OverlaySettings()
    ((_, reason),) = render_folder(preds, tmp_path / "m", over=over)
    assert "has no coordinates" in reason
    shown = pixels(tmp_path / "m" / "bag.png")
    np.testing.assert_array_equal(shown, plain(p, tmp_path / "plain.png"))


BOX = (100.0, 0.0, 40_100.0, 30_000.0)
"""A part of a slide, 40,000 pixels wide and 30,000 high."""


def test_the_scale_follows_the_options():
    assert chosen_scale(BOX, longest=1200) == pytest.approx(40_000 / 1200)
    assert chosen_scale(BOX, resolution=10.0, mpp=0.25) == 40
    most = int(MOST_PIXELS**0.5)
    assert chosen_scale((0.0, 0.0, 100.0, 100.0), longest=most) == 100 / most
    # never finer than the slide
    assert chosen_scale((0.0, 0.0, 500.0, 500.0), resolution=0.1, mpp=0.25) == 1
    refused(SlideError, r"--slide-mpp.*--longest", chosen_scale, BOX, resolution=10.0)


@pytest.mark.parametrize(
    ("longest", "width", "height"),
    [(100_000, 500.0, 500.0), (20_000, 300.0, 200.0), (9_000, 1.0, 1.0)],
)
def test_a_picture_of_too_many_pixels_is_refused(longest, width, height):
    with pytest.raises(InputError, match="--longest"):
        chosen_scale((0.0, 0.0, width, height), longest=longest)


def test_the_advised_size_of_a_picture_is_accepted():
    with pytest.raises(InputError, match=r"40,000 × 30,000 .*--resolution") as refusal:
        chosen_scale(BOX, resolution=0.25, mpp=0.25)
    resolution = float(str(refusal.value).split("--resolution ")[1])
    # the advice is rounded
    assert chosen_scale(BOX, resolution=resolution * 1.01, mpp=0.25) > 4
    with pytest.raises(InputError, match="--longest 9237"):
        chosen_scale((0.0, 0.0, 400_000.0, 300_000.0), longest=20_000)


@pytest.mark.parametrize(
    ("corners", "box"),
    [
        (lattice(), (0.0, 0.0, 640.0, 512.0)),
        (lattice(2, 3), (32.0, 64.0, 224.0, 320.0)),
        (np.array([[0, 480]]), (0.0, 448.0, 96.0, 512.0)),
    ],
    ids=["all of the slide", "with a margin", "at the edge"],
)
def test_the_part_of_a_slide_that_is_shown_follows_the_patches(corners, box):
    assert shown_box(squares(bag(corners)), size=(640, 512)) == box


def test_patches_that_lie_outside_their_slide_are_refused():
    slide = ArraySlide(pink(), name="s")
    checked_squares(bag([[-10, -10], [639, 511]]), slide, sources=OneSource(slide))
    for outside in ([[0, 0], [640, 0]], [[0, 0], [0, 512]], [[-64, 0], [0, 0]]):
        with pytest.raises(InputError, match=r"'bag'.*s\.tiff.* 640 × 512 "):
            checked_squares(bag(outside), slide, sources=OneSource(slide))
