"""The page in a real browser: pixels, keys, places, names; exported and served."""

import re
import socket
import threading
from dataclasses import replace

import numpy as np
import pytest
from support.made_maps import prediction
from support.made_views import (
    BLACK,
    ODD_NAME,
    SIDE,
    Shown,
    cells,
    chromium,
    lesion,
    write_bags,
    write_slides,
)
from support.made_views import bags as made_bags

from probsa.evaluation import read_predictions, stored_trust, write_predictions
from probsa.maps import NO_VARIANCE
from probsa.slides import WINDOWS, Windows, windowed
from probsa.view import ViewData, export_page, serve
from probsa.view.quantities import look_up_table


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An export with a slide, opened from a folder as a user opens it."""
    folder = tmp_path_factory.mktemp("view")
    other = [lesion(), *made_bags()[1:]]
    changed = lesion(attention_mean=(lesion().attention_mean + 0.5).astype(np.float32))
    data = ViewData(
        write_bags(folder / "preds"),
        slides=write_slides(folder / "slides"),
        against=write_bags(folder / "other", [changed, *other[1:]]),
        mpp=0.5,
    )
    export_page(data, folder / "page")
    data.close()
    return (folder / "page" / "index.html").as_uri()


@pytest.fixture(scope="module")
def shown(browser, exported):
    page = Shown(browser, exported, place="#bag=lesion&q=mean")
    yield page
    page.close()


def centre(mask: np.ndarray) -> np.ndarray:
    """Return (x, y) of the centre of the pixels of a mask."""
    return np.argwhere(mask).mean(0)[::-1]


def test_a_page_from_a_folder_shows_the_slide_and_its_map_and_asks_for_nothing_else(shown):
    assert shown.faults == []
    assert {url.split("/page/")[0] for url in shown.asked if not url.startswith("data:")} == {
        shown.page.url.split("/page/")[0]
    }
    shown.press("h")
    plain = shown.pixels()
    assert (np.abs(plain - (205, 130, 175)).max(-1) < 12).mean() > 0.15, "the slide is not drawn"
    assert (plain.max(-1) < 10).sum() > 400, "the black patch is not drawn"
    shown.press("h")
    assert np.abs(shown.pixels() - plain).max(-1).mean() > 10, "the map changes no pixels"


@pytest.mark.parametrize("scale", [1, 1.5])
def test_the_map_lies_on_the_slide_at_every_zoom(browser, exported, scale):
    """The centre of the coloured patch is that of the black patch within a pixel of the screen."""
    x, y = (np.array(BLACK) + 0.5) * SIDE
    page = Shown(browser, exported, scale=scale, place=f"#bag=lesion&q=labels&at={x},{y},1")
    page.js("probsa.panel.setOpacity(1); probsa.state.tissue = false; probsa.state.grey = false")
    page.js("probsa.panel.setThreshold(0.98)")  # of all patches, only the lesion's
    for per_pixel in (2.0, 1.0, 0.4):  # the whole patch is in view, away from the corners
        page.js(f"probsa.viewer.go({x}, {y}, {per_pixel}, true)")
        page.wait()
        page.press("h")
        black = page.pixels().max(-1) < 14  # the background is lighter
        page.press("h")
        map_colour = np.abs(page.pixels() - look_up_table("labels")[255].astype(int)).max(-1) < 12
        # the text of the scale bar and the small picture of the slide lie in the corners
        for mask in (black, map_colour):
            mask[: mask.shape[0] // 3, mask.shape[1] // 2 :] = False
            mask[-int(60 * scale) :, : mask.shape[1] // 3] = False
        expected = (SIDE / per_pixel * scale) ** 2
        assert map_colour.sum() == pytest.approx(expected, rel=0.12)
        assert np.abs(centre(map_colour) - centre(black)).max() <= scale
    page.close()


def test_the_value_below_the_pointer_is_the_stored_one(shown):
    p = lesion()
    row = int(p.attention_mean.argmax())
    shown.choose("lesion")
    at = (np.array(BLACK) + 0.5) * SIDE
    place = shown.js(
        f"(() => {{ const p = probsa.viewer.toCanvas({at[0]}, {at[1]});"
        "const b = document.getElementById('osd').getBoundingClientRect();"
        "return [b.left + p.x / probsa.viewer.ratio(), b.top + p.y / probsa.viewer.ratio()]; })()"
    )
    shown.page.mouse.move(*place)
    shown.settle()
    assert shown.js("probsa.state.patch") == row
    stored = np.float32(shown.js(f"probsa.valuesOf('mean')[{row}]"))
    assert stored == p.attention_mean[row]
    told = shown.text("#readout")
    assert told.startswith(f"patch {row} · x 448, y 256 px (0.224, 0.128 mm)")
    assert "evidence mean 4 ±" in told
    assert "P > 0.999" in told
    assert "label positive" in told


def test_a_patch_without_a_value_is_transparent(shown):
    """The first patch has no label; −1 must not be drawn as negative."""
    shown.choose("lesion")
    shown.press("6")
    drawn = np.array(shown.js("Array.from(probsa.overlay.pixels())")).reshape(-1, 4)
    index = np.array(shown.js("Array.from(probsa.state.map.raster.index)"))
    assert drawn[index == 0, 3].tolist() == [0]
    assert set(drawn[index > 0, 3]) == {255}
    assert set(drawn[index < 0, 3]) == {0}
    colours = {tuple(c) for c in drawn[index > 0, :3].tolist()}
    assert colours == {tuple(look_up_table("labels")[k].tolist()) for k in (0, 255)}


def test_the_threshold_counts_patches_and_area(shown):
    p = lesion()
    shown.choose("lesion")
    shown.press("1", *["."] * 3)
    kept = int((p.instance_probability >= 0.15).sum())
    area = kept * (SIDE * 0.5 / 1000) ** 2
    told = shown.text("#area")
    assert told.startswith(f"P ≥ 0.15: {kept} of {len(p.attention_mean)} patches, ")
    assert float(told.split(", ")[1].split(" ")[0]) == pytest.approx(area, rel=0.01)
    drawn = np.array(shown.js("Array.from(probsa.overlay.pixels())")).reshape(-1, 4)
    assert (drawn[:, 3] == 255).sum() == kept
    shown.press(*[","] * 3)
    assert shown.text("#threshold-text") == "off"


def test_an_area_ends_where_the_slide_ends(shown):
    """Half of the last column of patches lies beyond the edge."""
    p = lesion()
    shown.choose("lesion")
    right, bottom = (int(v) + SIDE for v in p.coords.max(0))
    shown.js(f"probsa.state.map.size = [{right - SIDE // 2}, {bottom}]")
    shown.press("1", *["."] * 3)
    kept = p.coords[p.instance_probability >= 0.15]
    last = (kept[:, 0] == p.coords[:, 0].max()).sum()
    area = (len(kept) - last / 2) * (SIDE * 0.5 / 1000) ** 2
    told = float(shown.text("#area").split(", ")[1].split(" ")[0])
    assert last and told == pytest.approx(area, rel=0.01)
    shown.press(*[","] * 3)


def test_the_list_begins_with_the_most_doubtful_bag_and_sorts_and_filters(shown):
    names = "Array.from(document.querySelectorAll('button.bag')).map(b => b.textContent)"
    assert shown.js(names) == [ODD_NAME, "lesion", "loose", "sure", "empty"]
    shown.page.uncheck("#only-test")
    assert shown.js(names) == [ODD_NAME, "lesion", "loose", "dirac", "sure", "empty"]
    shown.page.click("th[data-key=probability] button")
    assert shown.js(names)[0] == "lesion"
    assert shown.js(names)[-2:] == ["sure", "empty"]
    shown.page.click("th[data-key=probability] button")
    assert shown.js(names)[0] == "sure"
    shown.page.click("th[data-key=spread] button")
    for box, expected in (("wrong", ["sure"]), ("unsure", [ODD_NAME]), ("failed", ["empty"])):
        shown.page.check(f"#only-{box}")
        assert shown.js(names) == expected
        shown.page.uncheck(f"#only-{box}")
    shown.page.fill("#search", "LOO")
    assert shown.js(names) == ["loose"]
    shown.page.fill("#search", "")
    flags = "Array.from(document.querySelectorAll('.flag.training')).length"
    assert shown.js(flags) == 1


def test_a_page_without_a_place_opens_on_a_test_bag_that_is_called_rightly(browser, tmp_path):
    parts = {"a": "val", "b": "test", "c": "test", "d": "test", "e": "test"}
    labels = {"a": 1, "b": 0, "c": 0, "d": 1, "e": 1}
    sure = np.float32([0.9])
    spread = np.float32([0.3])
    made = [
        lesion("a", probability=sure, std=spread),  # validation
        lesion("b", probability=sure, std=spread),  # wrong
        lesion("c", probability=1 - sure, std=spread),  # without a finding
        lesion("d", probability=sure, std=spread / 9),
        lesion("e", probability=sure, std=spread / 3),  # more doubtful than d
    ]
    folder = tmp_path / "p"
    write_predictions(
        folder,
        made,
        labels=labels,
        parts=parts,
        classes=["benign", "tumour"],
        threshold=0.5,
        metadata={},
    )
    for left_out, opened in (("", "e"), ("ed", "c"), ("edc", "b"), ("edcb", "a")):
        for name in left_out:
            (folder / "instances" / f"{name}.h5").unlink(missing_ok=True)
        data = ViewData(folder)
        export_page(data, tmp_path / f"page without {left_out}")
        page = Shown(browser, (tmp_path / f"page without {left_out}" / "index.html").as_uri())
        assert page.text("#name") == opened
        page.close()


PARTS_OF_LISTS = [
    ("test train val", True),
    ("test train", True),
    ("new val", True),
    ("test new", False),
    ("val train", False),
    ("val", False),
    ("test", False),
]


@pytest.mark.parametrize(("parts", "has_filter"), PARTS_OF_LISTS)
def test_the_list_begins_with_test_bags_where_there_are_others(
    browser, tmp_path, parts, has_filter
):
    """Training and validation bags look better than new ones."""
    of_bag = {f"{part}{k}": part for part in parts.split() for k in range(2)}
    folder = tmp_path / "p"
    write_predictions(
        folder,
        [lesion(name) for name in of_bag],
        labels={},
        parts=of_bag,
        classes=["benign", "tumour"],
        threshold=0.5,
        metadata={"reservations": ["First of the run.", "Second of the run."]},
    )
    export_page(ViewData(folder), tmp_path / "page")
    address = (tmp_path / "page" / "index.html").as_uri()
    page = Shown(browser, address)
    names = "Array.from(document.querySelectorAll('button.bag')).map(b => b.textContent).sort()"
    tests = sorted(name for name, part in of_bag.items() if part in ("test", "new"))
    assert page.page.is_visible("#only-test") is has_filter
    assert page.js(names) == (tests if has_filter else sorted(of_bag))
    assert page.text("#name") in page.js(names)
    # what holds for the whole run stands in one line, and its reasons behind a button
    assert page.text("#trust") == stored_trust(read_predictions(folder)).line
    assert "of the run." not in page.text("#stage") + page.text("footer")
    page.page.click("#show-facts")
    for said in ("First of the run.", "Second of the run."):
        assert said in page.text("#facts")
    page.close()
    if not has_filter:
        return
    seen = next(name for name, part in of_bag.items() if part in ("train", "val"))
    page = Shown(browser, address, place=f"#bag={seen}")
    assert page.text("#name") == seen
    assert page.js(names) == sorted(of_bag), "a link leads to its bag"
    page.page.check("#only-test")
    page.wait()
    assert page.text("#name") in tests
    page.close()


@pytest.mark.parametrize("box", ["wrong", "unsure", "failed"])
def test_the_bag_that_is_open_passes_the_filters(shown, box):
    names = "Array.from(document.querySelectorAll('button.bag')).map(b => b.textContent)"
    for opened in ("lesion", "loose", "sure", "empty"):
        shown.page.uncheck("#only-test")
        shown.choose(opened)
        shown.page.check(f"#only-{box}")
        shown.wait()
        listed = shown.js(names)
        assert shown.text("#name") == (opened if opened in listed else listed[0])
        shown.page.uncheck(f"#only-{box}")
        assert shown.text("#name") in listed, "a bag that is in the list stays open"


def test_a_search_opens_what_it_finds_when_the_name_is_typed(shown):
    shown.choose("lesion")
    shown.page.fill("#search", "loo")
    assert shown.text("#name") == "lesion"
    shown.press("Enter")
    shown.wait()
    assert shown.text("#name") == "loose"
    shown.page.fill("#search", "no such bag")
    shown.press("Enter")
    shown.wait()
    assert shown.text("#name") == ""
    assert "clear the filters" in shown.text("#message")
    assert not shown.page.is_visible("#panel")
    shown.page.fill("#search", "")
    shown.press("Enter")
    shown.wait()
    assert shown.text("#name") == ODD_NAME
    assert shown.faults == []


def test_names_are_shown_as_text_and_never_in_the_title(shown):
    shown.choose(ODD_NAME)
    assert shown.text("#name") == ODD_NAME
    assert shown.js("document.querySelectorAll('#name img, button.bag img').length") == 0
    assert shown.page.title() == "probsa view"
    shown.choose("empty")
    assert shown.text("#message") == "no tissue in empty.svs"


def test_keys_choose_quantities_bags_and_layers(shown):
    shown.choose("lesion")
    quantities = []
    for key in "12345678":
        shown.press(key)
        quantities.append(shown.js("probsa.state.quantity"))
    assert quantities == [
        "mean",
        "deviation",
        "probability",
        "contribution",
        "weight",
        "labels",
        "difference",
        "difference-probability",
    ]
    shown.press("2", "d")
    assert shown.js("probsa.state.quantity") == "difference"
    difference = shown.js("Array.from(probsa.valuesOf('difference'))")
    np.testing.assert_allclose(difference, -0.5, atol=1e-6)
    shown.press("d")
    assert shown.js("probsa.state.quantity") == "deviation"
    shown.press("1", "]", "]")
    assert shown.text("#opacity-text") == "70 %"
    shown.press("[", "[")
    before = shown.js("probsa.viewer.place()")
    shown.press("+", "ArrowRight")
    shown.page.wait_for_timeout(400)
    after = shown.js("probsa.viewer.place()")
    assert after[2] == pytest.approx(before[2] / 1.4, rel=0.01)
    assert after[0] > before[0]
    shown.press("0", "Shift+ArrowRight")
    first = shown.js("probsa.state.patch")
    shown.press("Shift+ArrowDown")
    assert shown.js("probsa.state.patch") == first + 11
    assert shown.text("#readout").startswith(f"patch {first + 11} ")
    shown.press("j")
    shown.wait()
    assert shown.text("#name") == "loose"
    shown.press("k")
    shown.wait()
    assert shown.text("#name") == "lesion"
    shown.page.focus("#search")
    shown.press("j")
    assert shown.text("#name") == "lesion", "keys typed into the search do nothing else"
    shown.page.fill("#search", "")
    shown.page.focus("#osd")
    shown.press("?")
    assert shown.page.is_visible("#help")
    shown.press("Escape")


def test_a_link_leads_to_the_place(browser, exported, shown):
    shown.choose("lesion")
    shown.press("2")
    shown.js("probsa.viewer.go(500, 300, 0.5, true)")
    shown.page.wait_for_function("location.hash.includes('at=500,300,0.5')")
    link = shown.page.url
    assert "bag=lesion&q=deviation" in link
    other = Shown(browser, link)
    assert other.text("#name") == "lesion"
    assert other.js("probsa.state.quantity") == "deviation"
    assert other.js("probsa.viewer.place()") == pytest.approx([500, 300, 0.5], rel=1e-3)
    other.close()


def test_pictures_of_patches_lead_to_them(shown):
    p = lesion()
    shown.choose("lesion")
    rows = shown.js("probsa.state.values.galleries.map(g => g.rows)")
    assert rows[0][0] == p.attention_mean.argmax()
    doubt = np.abs(p.instance_probability.astype(float) - 0.5)
    order = np.argsort(doubt, kind="stable")[:10]
    assert rows[1] == [k for k in order.tolist() if doubt[k] < 0.25]
    loaded = "Array.from(document.querySelectorAll('.pictures img'))"
    assert shown.js(f"{loaded}.length") == sum(map(len, rows))
    shown.page.wait_for_function(f"{loaded}[0].complete && {loaded}[0].naturalWidth === 144")
    shown.page.click(".pictures button")
    shown.page.wait_for_timeout(500)
    at = (np.array(BLACK) + 0.5) * SIDE
    assert shown.js("probsa.viewer.place()")[:2] == pytest.approx(at.tolist(), abs=1)


def test_bags_unlike_training_are_filtered_and_charts_have_the_scale_of_the_map(browser, tmp_path):
    made = [replace(p, bag_ood=float(p.name == "dirac")) for p in made_bags()]
    data = ViewData(write_bags(tmp_path / "p", made))
    export_page(data, tmp_path / "page")
    page = Shown(browser, (tmp_path / "page" / "index.html").as_uri(), place="#bag=dirac&q=mean")
    page.page.locator("#only-unlike").check()
    assert page.text("#count").split()[0] == "1"

    def height() -> int:
        line = np.abs(page.pixels("#chart") - (169, 209, 247)).max(-1) < 12
        return int(np.ptp(np.flatnonzero(line.any(1))))

    of_all = height()
    page.js("probsa.state.scale = 'bag'; probsa.recolour()")
    page.settle()
    assert 2 * of_all < height()
    page.close()


def test_instances_without_coordinates_are_a_chart_and_a_table(shown):
    shown.choose("loose")
    assert shown.js("document.querySelectorAll('#instances tbody tr').length") == 6
    assert shown.text("#instances tbody tr td") == "5", "the highest mean comes first"
    shown.press("Home", "ArrowDown")
    assert shown.text("#readout").startswith("instance 1 · attention mean −0.6667 ±")
    shown.choose("dirac")
    assert NO_VARIANCE in shown.text("#quantities")
    assert shown.faults == []


@pytest.fixture(scope="module")
def scanned(browser, tmp_path_factory):
    """An export of a scan whose slices hold their numbers, and whose table has them reversed."""
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed")
    folder = tmp_path_factory.mktemp("scan")
    rng = np.random.default_rng(1)
    volume = rng.integers(-1000, 1000, (5, 24, 16)).astype(np.int16)  # slices, rows, columns
    stored = volume[:, ::-1, ::-1].transpose(2, 1, 0)  # to the right, to the front, upwards
    (folder / "scans").mkdir()
    image = nibabel.Nifti1Image(stored, np.diag([1.0, 1.0, 2.5, 1.0]))
    nibabel.save(image, folder / "scans" / "head.nii.gz")
    positions = np.arange(5)[::-1, None] * 2.5
    p = prediction(
        positions,
        np.arange(5.0),
        np.full(5, 0.1),
        name="head",
        kind="ct",
        stride=None,
        instance_labels=np.array([1, 0, 0, 0, -1], np.int8),
    )
    data = ViewData(write_bags(folder / "p", [p]), slides=folder / "scans")
    export_page(data, folder / "page")
    page = Shown(browser, (folder / "page" / "index.html").as_uri())
    yield page, volume
    page.close()


def test_slices_are_those_of_the_scan_by_position_in_the_window_of_the_package(scanned):
    page, volume = scanned
    assert page.faults == []
    held = (
        "Array.from(document.getElementById('slice').getContext('2d').getImageData(0,0,16,24).data)"
    )
    page.press("Home")
    for k in range(5):
        page.page.wait_for_selector(f"#slice[data-slice='{k}']")
        page.settle()
        shown = np.array(page.js(held)).reshape(24, 16, 4)
        window = Windows((WINDOWS["brain"],) * 3)
        np.testing.assert_array_equal(shown[..., :3], windowed(volume[k].astype("f4"), window))
        assert page.text("#slice-text") == f"slice {k + 1} of 5, {k * 2.5:g} mm"
        assert page.text("#readout").startswith(
            f"slice at {k * 2.5:g} mm · attention mean {4 - k} ±"
        )
        page.press("ArrowDown")
    page.page.select_option("#preset", "bone")
    shown = np.array(page.js(held)).reshape(24, 16, 4)
    window = Windows((WINDOWS["bone"],) * 3)
    np.testing.assert_array_equal(shown[..., :3], windowed(volume[4].astype("f4"), window))
    assert [s.strip() for s in page.page.locator(".side").all_inner_texts()] == ["R", "L"]


def test_the_wheel_and_the_chart_move_through_the_scan(scanned):
    page, _ = scanned
    page.press("Home")
    page.page.wait_for_selector("#slice[data-slice='0']")
    page.page.hover("#slice")
    page.page.mouse.wheel(0, 100)
    page.page.wait_for_selector("#slice[data-slice='1']")
    box = page.page.locator("#chart").bounding_box()
    page.page.mouse.click(box["x"] + box["width"] - 30, box["y"] + 60)
    page.page.wait_for_selector("#slice[data-slice='4']")
    page.page.wait_for_function("location.hash.includes('slice=0')")
    strip = page.pixels("#chart")
    for colour in ((0xD5, 0x5E, 0x00), (0x56, 0xB4, 0xE9)):  # labels of both kinds
        assert (np.abs(strip - colour).max(-1) < 6).sum() > 100


def test_the_colours_of_all_bags_are_those_of_a_fixed_scale(shown, exported):
    shown.choose("lesion")
    shown.press("1")
    shown.page.select_option("#scale", "all")
    shown.page.wait_for_function("probsa.colour.range(probsa.quantity())[1] !== 4")
    every = np.concatenate([p.attention_mean for p in made_bags()])
    most = np.abs(np.quantile(every.astype(float), (0.01, 0.99))).max()
    assert shown.js("probsa.colour.range(probsa.quantity())") == pytest.approx([-most, most])
    assert shown.page.is_visible("#bar-above.shown"), "values above the range are marked"
    shown.page.select_option("#scale", "bag")
    assert not shown.page.is_visible("#bar-above.shown")


def test_a_bag_without_a_slide_is_whole_opaque_and_flat_if_its_values_are_small(browser, tmp_path):
    far = cells() * SIDE + 100_000
    strong = lesion()
    small = {"attention_mean": strong.attention_mean / 100, "name": "small"}
    bags = [replace(strong, coords=far), replace(strong, coords=far, **small)]
    data = ViewData(write_bags(tmp_path / "p", bags))
    export_page(data, tmp_path / "page")
    page = Shown(browser, (tmp_path / "page" / "index.html").as_uri(), place="#bag=lesion&q=mean")
    expected = [probe.tolist() for probe in (far.min(0), far.max(0) + SIDE)]
    view = "(([x, y]) => { const p = probsa.viewer.toCanvas(x, y); return [p.x, p.y]; })"
    corners = [page.page.evaluate(view, at) for at in expected]
    box = page.js("[document.getElementById('osd').clientWidth, probsa.byId('osd').clientHeight]")
    assert min(corners[0]) >= 0
    assert (np.array(corners[1]) <= box).all()
    assert (np.array(corners[1]) - corners[0] > np.array(box) / 2).any(), "the map is small"
    colour = np.array(page.js("probsa.colour.css(probsa.quantity(), 4).match(/\\d+/g).map(Number)"))
    assert (np.abs(page.pixels() - colour).max(-1) < 3).sum() > 500, "the map is not opaque"
    assert page.js("document.querySelectorAll('#gallery > p.note').length") == 1
    assert "no image" in page.text("#gallery > p.note")
    page.choose("small")
    assert "no value" in page.text("#bar-note") and "largest" in page.text("#bar-note")
    drawn = np.array(page.js("Array.from(probsa.overlay.pixels())")).reshape(-1, 4)
    assert len(np.unique(drawn[drawn[:, 3] > 0], axis=0)) == 1
    assert page.faults == []
    page.close()


def raw(port: int, request: str) -> bytes:
    """Send a request as it stands; clients normalise paths."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as s:
        s.sendall(request.encode())
        return b"".join(iter(lambda: s.recv(65536), b""))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server with 200,704 patches."""
    side = 448
    grid = np.stack(np.divmod(np.arange(side * side), side)[::-1], axis=1)
    rng = np.random.default_rng(0)
    p = prediction(
        (grid * 256).astype(np.int64),
        rng.normal(size=side * side),
        rng.random(side * side),
        name="large",
        score_kind="evidence",
        instance_probability=rng.random(side * side).astype(np.float32),
    )
    data = ViewData(write_bags(tmp_path_factory.mktemp("large") / "preds", [p]))
    addresses: list[str] = []
    ready = threading.Event()

    def tell(address):
        addresses.append(address)
        ready.set()

    threading.Thread(target=serve, args=(data,), kwargs={"ready": tell}, daemon=True).start()
    assert ready.wait(30)
    return addresses[0]


def test_200_000_patches_are_recoloured_at_once(browser, served):
    page = Shown(browser, served)
    assert page.faults == []
    assert page.page.url.partition("#")[0].endswith("/"), "the token leaves the address"
    times = page.js(
        "Array.from({length: 20}, (_, k) => { const t = performance.now();"
        "probsa.state.ranges.mean = [-1 - k, 1 + k]; probsa.recolour();"
        "return performance.now() - t; })"
    )
    assert np.median(times) < 100
    assert page.js("performance.memory.usedJSHeapSize") < 200e6
    page.close()


def test_the_server_answers_nothing_but_the_page(served):
    address, _, token = served.partition("/?token=")
    port = int(address.rpartition(":")[2])
    cookie = f"Cookie: probsa-view-{port}={token}"

    def status(path, *headers, method="GET", host="127.0.0.1"):
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
        return int(raw(port, "\r\n".join([*lines, "", ""])).split()[1])

    assert status("/") == 403
    assert status("/?token=wrong") == 403
    assert status("/", f"Cookie: probsa-view-{port}=wrong") == 403
    assert status("/?token=" + token) == 303
    assert status("/", cookie) == 200
    assert status("/", cookie, host="evil.example") == 400
    assert status("/data/slides.js", cookie) == 200
    assert status("/", cookie, method="HEAD") == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert status("/", cookie, method=method) == 405
    for path in (
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/data/map/../0.js",
        "/data/map/99.js",
        "/data/map/-1.js",
        "/data/map/x.js",
        "/data/tiles/0/0/0_0.jpg",
        "/data/values/0_1.js",
        "/../../etc/passwd",
        "/data/map/99999999999999999999.js",
    ):
        assert status(path, cookie) == 404, path
    head = raw(port, f"GET / HTTP/1.1\r\nHost: localhost\r\n{cookie}\r\nConnection: close\r\n\r\n")
    text = head.decode().partition("\r\n\r\n")[0].lower()
    for header in (
        "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cross-origin-resource-policy: same-origin",
    ):
        assert header in text
    with pytest.raises(OSError, match=r"refused|unreachable|timed out"):
        socket.create_connection((_own_address(), port), timeout=2)


def _own_address() -> str:
    """Return an address of this machine that is not the loopback's, or another loopback one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))
            return s.getsockname()[0]
        except OSError:
            return "127.0.0.2"


@pytest.mark.parametrize(("p", "limit"), [(0.487, 0.4912), (0.4912, 0.487), (0.5004, 0.5)])
def test_a_probability_does_not_look_like_the_threshold_that_it_differs_from(
    browser, tmp_path, p, limit
):
    folder = tmp_path / "p"
    bags = [lesion(name, probability=np.float32([value])) for name, value in (("a", p), ("b", 0.9))]
    write_predictions(
        folder,
        bags,
        labels={},
        parts={"a": "test", "b": "test"},
        classes=["benign", "tumour"],
        threshold=limit,
        metadata={},
    )
    export_page(ViewData(folder), tmp_path / "page")
    page = Shown(browser, (tmp_path / "page" / "index.html").as_uri(), place="#bag=a")
    said = re.findall(r"[01]\.\d+", page.text("#verdict"))
    numbers = [float(number) for number in said]
    assert (numbers[0] > numbers[-1]) is (p > limit) and numbers[0] != numbers[-1]
    page.close()
