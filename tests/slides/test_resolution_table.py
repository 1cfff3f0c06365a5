"""Resolutions that the user states: one number, or a table."""

import pytest
from support.refusals import refused

from probsa.errors import InputError, SlideError, TableError
from probsa.slides import read_resolutions, resolution_of


def test_a_number_and_a_table(tmp_path):
    assert read_resolutions("0.5") == 0.5 and read_resolutions(0.25) == 0.25
    table = tmp_path / "t.csv"
    table.write_text("slide,mpp\nx,0.25\n\ny.tiff, 0.5\nx,0.25\n")
    assert read_resolutions(table) == {"x": 0.25, "y.tiff": 0.5}
    table.write_text("mpp\tslide\n0.25\tx\n")  # as a spreadsheet may save it
    assert read_resolutions(str(table)) == {"x": 0.25}
    table = {"a.svs": 0.25, "b": 0.5}
    assert resolution_of(table, "a", "a.svs") == 0.25
    assert resolution_of(table, "b", "b.svs") == 0.5
    assert resolution_of(table, "c", "c.svs") is None
    assert resolution_of(0.4, "c") == 0.4
    assert resolution_of(None, "c") is None


@pytest.mark.parametrize("text", ["-1", "0", "5000"])
def test_numbers_that_are_no_resolution(text):
    refused(SlideError, "--slide-mpp", read_resolutions, text)


def test_what_is_no_table_of_resolutions(tmp_path):
    for neither in (str(tmp_path / "none.csv"), "nan"):
        refused(InputError, "--slide-mpp", read_resolutions, neither)
    table = tmp_path / "t.csv"
    table.write_text("name,um\nx,0.5\n")
    refused(InputError, "'slide' .*'mpp'.* name, um", read_resolutions, str(table))
    table.write_text("slide,mpp\n")
    refused(TableError, r"t\.csv", read_resolutions, str(table))
    table.write_text("slide,mpp\nx,half\n")
    refused(InputError, r"mpp of 'x' is 'half'", read_resolutions, str(table))
    table.write_text("slide,mpp\nx,0.25\ny,0.5\nx,0.5\n")
    with pytest.raises(TableError, match=r"t\.csv, line 4: .*'x'.* 0\.25 "):
        read_resolutions(table)
