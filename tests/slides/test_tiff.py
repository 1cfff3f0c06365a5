"""Slides through tifffile: as OpenSlide sees them, and what OpenSlide does not see."""

import io
import math
import struct
import tracemalloc

import imagecodecs
import numpy as np
import openslide
import pytest
import tifffile
from PIL import Image
from support.refusals import refused
from support.written_slides import damage, texture, write_ome, write_pyramid

from probsa.errors import RegionError, SlideError
from probsa.slides import open_slide
from probsa.slides.tiff import TiffSlide, is_whole
from probsa.slides.wsi import WsiSlide


def both(path):
    """The same file through both readers."""
    return TiffSlide(path, name="a"), WsiSlide(path, name="a")


def whole(slide, level=0):
    """A level, whole."""
    at = slide.levels[level]
    return slide.read(x=0, y=0, level=level, width=at.width, height=at.height)


def furthest(a, b):
    """The largest difference between two images."""
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b).max())


COLOURS = {
    "rgb": (3, {"compression": None}, 0),
    "rgb jpeg": (3, {"compression": "jpeg"}, 0),
    "deflate": (3, {}, 0),
    "lzw": (3, {"compression": "lzw"}, 0),
    "ycbcr jpeg": (3, {"photometric": "ycbcr", "compression": "jpeg"}, 0),
    "grey": (1, {"photometric": "minisblack"}, 0),
    "grey jpeg": (1, {"photometric": "minisblack", "compression": "jpeg"}, 0),
    "transparent": (4, {"extrasamples": ["unassalpha"]}, 1),
    "predictor": (3, {"compression": "deflate", "predictor": True}, 0),
    "zstd": (3, {"compression": "zstd"}, 0),
}


@pytest.mark.parametrize("kind", COLOURS)
def test_both_readers_see_the_same_levels_and_colours(tmp_path, kind):
    channels, how, limit = COLOURS[kind]
    image = texture(500, 701, channels)
    path = write_pyramid(tmp_path / "p.tif", image[..., 0] if channels == 1 else image, **how)
    ours, theirs = both(path)
    with ours, theirs:
        assert len(ours.levels) == 3
        assert ours.levels == theirs.levels
        # 701 pixels have no half
        assert ours.levels[1].downsample != 2
        assert ours.levels[1].downsample == openslide.OpenSlide(path).level_downsamples[1]
        for level in range(3):
            assert furthest(whole(ours, level), whole(theirs, level)) <= limit
            assert whole(ours, level).std() > 5


@pytest.mark.parametrize(
    "name", ["CMU-1-Small-Region_derived_pyramid.tiff", "CMU-1-Small-Region.svs"]
)
def test_both_readers_agree_on_real_files(shared_data, name):
    """The tiles of the second share their tables."""
    path = shared_data / "wsi" / name
    with tifffile.TiffFile(path) as f:
        assert bool(f.pages[0].jpegtables) == path.name.endswith(".svs")
    ours, theirs = both(path)
    with ours, theirs:
        for x, y in [(511, 777), (900, 1000), (1800, 2600), (-33, -34)]:
            where = {"x": x, "y": y, "level": 0, "width": 512, "height": 400}
            assert furthest(ours.read(**where), theirs.read(**where)) == 0
        if name.endswith(".tiff"):
            assert ours.mpp == pytest.approx(theirs.mpp, rel=1e-6)
            assert all(furthest(whole(ours, k), whole(theirs, k)) == 0 for k in (1, 2))


@pytest.mark.parametrize("corner", [(101, 100), (-7, -9), (690, 480)])
def test_between_pixels_the_nearest_is_read(tmp_path, corner):
    """OpenSlide interpolates there, and shifts the second block of 4096 pixels of a region."""
    image = texture(500, 701)
    with TiffSlide(write_pyramid(tmp_path / "p.tif", image), name="a") as slide:
        for level, factor in enumerate((1, 2, 4)):
            stored = np.pad(
                image[::factor, ::factor], ((90, 90), (90, 90), (0, 0)), constant_values=255
            )
            x, y = (round(v / slide.levels[level].downsample) + 90 for v in corner)
            got = slide.read(x=corner[0], y=corner[1], level=level, width=60, height=50)
            np.testing.assert_array_equal(got, stored[y : y + 50, x : x + 60])


def test_pages_that_are_no_levels_are_none_here_either(tmp_path):
    image = texture(300, 400)
    path = tmp_path / "extra.tif"
    with tifffile.TiffWriter(path) as f:
        how = {"photometric": "rgb", "compression": "deflate", "metadata": None}
        f.write(image, tile=(64, 64), **how)
        f.write(texture(100, 110, seed=3), tile=(64, 64), **how)  # not marked as reduced
        f.write(texture(90, 300, seed=4), subfiletype=1, **how)  # a label, in strips
        f.write(np.ascontiguousarray(image[::4, ::4]), tile=(64, 64), subfiletype=1, **how)
        f.write(np.ascontiguousarray(image[::2, ::2]), tile=(64, 64), subfiletype=1, **how)
    ours, theirs = both(path)
    with ours, theirs:
        assert ours.levels == theirs.levels
        assert [v.width for v in ours.levels] == [400, 200, 100]
        assert np.array_equal(whole(ours, 1), image[::2, ::2])


@pytest.mark.parametrize(
    ("metadata", "mpp", "source"),
    [
        ({"PhysicalSizeX": 0.25, "PhysicalSizeY": 0.25}, 0.25, "OME PhysicalSizeX"),
        (
            {
                "PhysicalSizeX": 250.0,
                "PhysicalSizeXUnit": "nm",
                "PhysicalSizeY": 0.00025,
                "PhysicalSizeYUnit": "mm",
            },
            0.25,
            "OME PhysicalSizeX",
        ),
        (
            {"PhysicalSizeX": 0.5, "PhysicalSizeY": 0.54},
            0.52,
            "OME PhysicalSizeX, mean of x 0.5 and y 0.54",
        ),
        ({"PhysicalSizeX": 1.0, "PhysicalSizeXUnit": "pixel"}, None, None),
        ({}, None, None),
    ],
)
def test_the_pyramid_of_an_ome_tiff_is_seen(tmp_path, metadata, mpp, source):
    image = texture(500, 600)
    path = write_ome(tmp_path / "a.ome.tiff", image, metadata=metadata)
    assert openslide.OpenSlide(path).level_count == 1
    with open_slide(path) as slide:
        assert slide.name == "a" and slide.format == "ome-tiff"
        assert [(v.width, v.height) for v in slide.levels] == [(600, 500), (300, 250), (150, 125)]
        assert [v.downsample for v in slide.levels] == [1.0, 2.0, 4.0]
        for level, factor in enumerate((1, 2, 4)):
            assert np.array_equal(whole(slide, level), image[::factor, ::factor])
        assert slide.mpp == (None if mpp is None else pytest.approx(mpp))
        assert slide.mpp_source == source


def test_the_largest_image_of_an_ome_tiff_is_the_slide(tmp_path):
    label = texture(60, 80, seed=1)
    image = texture(300, 400)
    path = tmp_path / "two.ome.tif"
    how = {"photometric": "rgb", "compression": "deflate"}
    with tifffile.TiffWriter(path, ome=True) as f:
        f.write(label, metadata={"axes": "YXS", "Name": "label", "PhysicalSizeX": 9.0}, **how)
        metadata = {"axes": "YXS", "Name": "scan", "PhysicalSizeX": 0.5}
        f.write(image, tile=(64, 64), metadata=metadata, **how)
    with open_slide(path) as slide:
        assert slide.size == (400, 300) and slide.mpp == 0.5
        assert slide.associated_images == ("label",)
        assert np.array_equal(whole(slide), image)


def test_the_objective_of_an_ome_tiff_is_that_of_its_image(tmp_path):
    description = (
        '<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06">'
        '<Instrument ID="Instrument:0"><Objective ID="Objective:0" NominalMagnification="10"/>'
        '<Objective ID="Objective:1" NominalMagnification="40"/></Instrument>'
        '<Image ID="Image:0"><ObjectiveSettings ID="Objective:1"/><Pixels ID="Pixels:0" '
        'DimensionOrder="XYCZT" Type="uint8" SizeX="80" SizeY="60" SizeZ="1" SizeC="3" SizeT="1" '
        'PhysicalSizeX="0.00025" PhysicalSizeXUnit="mm"><Channel ID="Channel:0" '
        'SamplesPerPixel="3"/><TiffData IFD="0" PlaneCount="1"/></Pixels></Image></OME>'
    )
    path = tmp_path / "o.ome.tif"
    image = texture(60, 80)
    tifffile.imwrite(path, image, photometric="rgb", description=description, metadata=None)
    with open_slide(path) as slide:
        assert slide.format == "ome-tiff" and slide.properties["objective power"] == "40"
        assert slide.mpp == pytest.approx(0.25)


def test_levels_may_be_subordinate_directories(tmp_path):
    image = texture(300, 400)
    path = tmp_path / "sub.tif"
    how = {"tile": (64, 64), "photometric": "rgb", "compression": "deflate", "metadata": None}
    with tifffile.TiffWriter(path) as f:
        f.write(image, subifds=1, **how)
        f.write(np.ascontiguousarray(image[::2, ::2]), subfiletype=1, **how)
    with open_slide(path) as slide:
        assert slide.format == "generic-tiff"
        assert np.array_equal(whole(slide, 1), image[::2, ::2])


PALETTE = np.zeros((3, 256), np.uint16)


@pytest.mark.parametrize(
    ("name", "shape", "how", "said"),
    [
        ("a.tif", (100, 120, 3), {"dtype": "u2", "photometric": "rgb"}, "16 bits per channel"),
        ("a.tif", (100, 120), {"dtype": "f4", "photometric": "minisblack"}, "32 bits per channel"),
        ("a.tif", (100, 120), {"dtype": "bool", "photometric": "minisblack"}, "1 bits per channel"),
        ("a.tif", (100, 120, 3), {"photometric": "cielab"}, "colours as CIELAB"),
        ("a.tif", (100, 120, 4), {"photometric": "separated"}, "colours as SEPARATED"),
        ("a.tif", (100, 120), {"photometric": "miniswhite"}, "colours as MINISWHITE"),
        ("a.tif", (100, 120), {"photometric": "palette", "colormap": PALETTE}, "as PALETTE"),
        (
            "a.tif",
            (100, 120, 4),
            {"photometric": "rgb", "extrasamples": ["assocalpha"]},
            "4 channels where 3 were expected",
        ),
        (
            "a.tif",
            (3, 100, 120),
            {"photometric": "rgb", "planarconfig": "separate"},
            "3 channels in planes",
        ),
        ("a.tif", (100, 120, 3), {"photometric": "ycbcr"}, "YCBCR with compression NONE"),
        (
            "a.tif",
            (100, 120, 5),
            {"photometric": "rgb", "planarconfig": "contig", "extrasamples": [0, 0]},
            "5 channels where 3 were expected",
        ),
        ("a.ome.tif", (3, 100, 120), {"photometric": "minisblack"}, "3 planes of axes"),
        ("a.ome.tif", (4, 100, 120, 3), {"photometric": "rgb"}, "4 planes of axes"),
    ],
)
def test_what_is_no_bright_field_image_of_8_bits_is_refused(tmp_path, name, shape, how, said):
    path = tmp_path / name
    options = {"dtype": "u1", **how}
    image = np.zeros(shape, options.pop("dtype"))
    tifffile.imwrite(path, image, tile=(64, 64), **options)
    refused(SlideError, said, open_slide, path)


def write_large(path, *, side, tile):
    """Write a one-level square whose tiles are of four flat colours, and return the colours.

    The tile in row i and column j has the colour (i + j) modulo 4. Each is encoded once.
    """
    colours = np.array([[250, 240, 245], [180, 60, 120], [90, 40, 130], [230, 200, 210]], np.uint8)
    flat_tiles = [np.broadcast_to(c, (tile, tile, 3)).copy() for c in colours]
    encoded = [imagecodecs.deflate_encode(flat_tile) for flat_tile in flat_tiles]
    count = math.ceil(side / tile)
    tifffile.imwrite(
        path,
        (encoded[(row + column) % 4] for row in range(count) for column in range(count)),
        shape=(side, side, 3),
        dtype="u1",
        tile=(tile, tile),
        photometric="rgb",
        compression="deflate",
    )
    return colours


def test_a_large_one_level_file_is_read_by_the_tiles_of_a_region(tmp_path):
    side = 20_000
    tile = 256
    path = tmp_path / "large.tif"
    colours = write_large(path, side=side, tile=tile)
    with open_slide(path) as slide:
        kept = slide._arrays[0][0].decode
        tracemalloc.start()
        region = slide.read(x=10_000, y=15_000, level=0, width=600, height=500)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 << 20  # the level has 1,200 MB
        y, x = np.mgrid[15_000:15_500, 10_000:10_600]
        assert np.array_equal(region, colours[(x // tile + y // tile) % 4])
        slide.read(x=10_000, y=15_000, level=0, width=600, height=500)
        assert (kept.cache_info().misses, kept.cache_info().hits) == (9, 9)
        # 32 × 16 tiles are more than what is kept: the oldest are forgotten
        slide.read(x=0, y=0, level=0, width=32 * tile, height=16 * tile)
        bytes_per_tile = 3 * tile**2
        assert kept.cache_info().currsize * bytes_per_tile <= 64 << 20
        slide.read(x=10_000, y=15_000, level=0, width=600, height=500)
        assert kept.cache_info().misses == 9 + 32 * 16 + 9


def test_a_region_is_read_from_its_strips_alone(tmp_path):
    image = texture(900, 500)
    path = tmp_path / "strips.tif"
    how = {"photometric": "rgb", "compression": "deflate", "rowsperstrip": 50}
    tifffile.imwrite(path, image, resolution=(100, 100), resolutionunit="INCH", **how)
    assert openslide.OpenSlide.detect_format(path) is None
    with open_slide(path) as slide:
        assert slide.format == "tiff" and slide.properties["strips"] == "18"
        assert slide.mpp is None  # 100 dots an inch are a printer's
        got = slide.read(x=30, y=170, level=0, width=80, height=60)
        assert np.array_equal(got, image[170:230, 30:110])
        assert slide._arrays[0][0].decode.cache_info().misses == 2
        assert np.array_equal(whole(slide), image)


def test_a_region_of_one_large_strip_is_read_in_little_memory(tmp_path):
    image = np.tile(texture(400, 500), (10, 8, 1))  # 48 MB
    path = tmp_path / "one.tif"
    tifffile.imwrite(path, image, photometric="rgb", rowsperstrip=4000)
    with open_slide(path) as slide:
        assert slide.properties["strips"] == "1"
        tracemalloc.start()
        got = slide.read(x=100, y=2100, level=0, width=300, height=200)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert np.array_equal(got, image[2100:2300, 100:400])
        assert peak < 20 << 20
        assert np.array_equal(whole(slide), image)


def test_a_large_image_in_one_compressed_strip_is_refused(tmp_path):
    path = tmp_path / "piece.tif"
    tifffile.imwrite(
        path,
        iter([b"x" * 1000]),
        shape=(30_000, 30_000, 3),
        dtype="u1",
        photometric="rgb",
        compression="deflate",
        rowsperstrip=30_000,
    )
    refused(SlideError, "30000 x 30000", open_slide, path)


def test_a_bigtiff_is_read_and_cut_short_is_seen(tmp_path):
    image = texture(300, 400)
    path = write_pyramid(tmp_path / "big.tif", image, bigtiff=True)
    assert path.read_bytes()[:4] == b"II+\0"
    with open_slide(path) as slide:
        assert np.array_equal(whole(slide, 2), image[::4, ::4])
    for share in (0.3, 0.999):
        cut = tmp_path / "cut.tif"
        cut.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
        refused(SlideError, cut.name, open_slide, cut)


@pytest.mark.parametrize("kind", ["hole", "ones", "noise", "cut", "text"])
def test_a_damaged_jpeg_tile_costs_its_own_regions_only(tmp_path, kind):
    image = texture(400, 600)
    intact = write_ome(tmp_path / "intact.tif", image, compression="jpeg")
    path = tmp_path / "damaged.tif"
    path.write_bytes(intact.read_bytes())
    damage(path, tile=7, kind=kind)  # 5 tiles a row: row 1, column 2
    with open_slide(path) as slide, open_slide(intact) as sound:
        for _ in range(2):  # a tile that cannot be decoded is not kept as if it were white
            with pytest.raises(RegionError, match=r"level 0 .* 50 x 50 .*\(300, 200\)"):
                slide.read(x=300, y=200, level=0, width=50, height=50)
            # this region has only the last pixel of the tile
            with pytest.raises(RegionError, match=r"level 0 .* 50 x 50 .*\(383, 255\)"):
                slide.read(x=383, y=255, level=0, width=50, height=50)
        for x, y, w, h in [(0, 0, 600, 128), (0, 128, 256, 128), (384, 128, 216, 272)]:
            where = {"x": x, "y": y, "level": 0, "width": w, "height": h}
            assert np.array_equal(slide.read(**where), sound.read(**where))
        assert np.array_equal(whole(slide, 1), whole(sound, 1))


def test_damage_is_seen_where_tiles_share_their_tables(shared_data, tmp_path):
    path = tmp_path / "a.svs"
    path.write_bytes((shared_data / "wsi" / "CMU-1-Small-Region.svs").read_bytes())
    damage(path, tile=55, kind="hole")
    with TiffSlide(path, name="a") as slide:
        with pytest.raises(RegionError, match=r"\(1250, 1250\)"):
            slide.read(x=1250, y=1250, level=0, width=10, height=10)
        slide.read(x=960, y=1200, level=0, width=240, height=240)


def test_zeros_that_belong_to_a_jpeg_are_no_hole():
    # with tables of its own, one bit a block: a flat image is zeros
    buffer = io.BytesIO()
    Image.new("L", (512, 512), 128).save(buffer, "JPEG", optimize=True)
    data = buffer.getvalue()
    assert bytes(12) in data
    assert is_whole(data)


def test_a_jpeg_without_its_beginning_or_its_end_is_not_whole():
    buffer = io.BytesIO()
    Image.new("L", (512, 512), 128).save(buffer, "JPEG", optimize=True)
    data = buffer.getvalue()
    assert not is_whole(b"")
    assert not is_whole(data[2:])
    assert not is_whole(data[:-2])


@pytest.mark.parametrize("compression", ["deflate", "lzw", "jpeg2000", "webp"])
def test_a_damaged_tile_of_other_compressions_is_seen(tmp_path, compression):
    image = texture(300, 400)
    path = write_pyramid(tmp_path / "a.tif", image, compression=compression, factors=(1,))
    damage(path, tile=5, kind="text")
    with open_slide(path) as slide:
        with pytest.raises(RegionError, match=r"5 x 5 .*\(130, 130\)"):
            slide.read(x=130, y=130, level=0, width=5, height=5)
        assert slide.read(x=0, y=0, level=0, width=128, height=128).std() > 5


def test_tiles_that_a_file_leaves_out_are_white_as_openslide_has_them(tmp_path):
    image = texture(256, 256)
    path = tmp_path / "sparse.tif"
    quarters = [image[:128, :128], image[:128, 128:], image[128:, :128], image[128:, 128:]]
    encoded = [imagecodecs.deflate_encode(np.ascontiguousarray(q)) for q in quarters]
    encoded[1] = b""
    tifffile.imwrite(
        path,
        iter(encoded),
        shape=image.shape,
        dtype="u1",
        tile=(128, 128),
        photometric="rgb",
        compression="deflate",
    )
    ours, theirs = both(path)
    with ours, theirs:
        assert furthest(whole(ours), whole(theirs)) == 0
        assert whole(ours)[:128, 128:].min() == 255
        assert np.array_equal(whole(ours)[128:], image[128:])


def test_a_file_that_shrinks_while_it_is_open_is_seen(tmp_path):
    path = write_pyramid(tmp_path / "a.tif", texture(300, 400), compression=None, factors=(1,))
    with open_slide(path) as slide:
        with path.open("r+b") as f:
            f.truncate(path.stat().st_size - 1000)
        with pytest.raises(RegionError, match=r"\(390, 290\)"):
            slide.read(x=390, y=290, level=0, width=5, height=5)
        assert slide.read(x=0, y=0, level=0, width=128, height=128).std() > 5


def next_directory(data: bytes, directory: int) -> tuple[int, int]:
    """Return where the link to the next directory of a TIFF stands, and where it leads."""
    (entries,) = struct.unpack_from("<H", data, directory)
    link = directory + 2 + 12 * entries
    (target,) = struct.unpack_from("<I", data, link)
    return link, target


@pytest.mark.parametrize("where", ["first", "last"])
def test_directories_in_a_loop_are_refused(tmp_path, where):
    """A reader that looks for the last directory would never end."""
    path = tmp_path / "loop.tif"
    with tifffile.TiffWriter(path) as file:
        for side in (512, 256):
            image = np.full((side, side, 3), 200, np.uint8)
            file.write(image, photometric="rgb", tile=(128, 128), subfiletype=int(side < 512))
    data = bytearray(path.read_bytes())
    (first,) = struct.unpack_from("<I", data, 4)
    link_of_first, second = next_directory(data, first)
    link_of_second, end = next_directory(data, second)
    assert end == 0
    link = link_of_first if where == "first" else link_of_second
    struct.pack_into("<I", data, link, first)
    path.write_bytes(data)
    refused(SlideError, path.name, open_slide, path)
