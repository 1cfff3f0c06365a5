"""Names that a spreadsheet or a terminal would obey are neutralised, and read back as they were."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probsa.core import TextTable, csv_text, printable, protect_cell, restore_cell, write_csv

HOSTILE = st.text(st.sampled_from("'=\\x1b-5.@ é\n\t\r\x1b\x9b\u202e\udcff"), max_size=8)


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ('=HYPERLINK("http://x")', '\'=HYPERLINK("http://x")'),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("@x", "'@x"),
        ("-x", "'-x"),
        ("\t=1", "'\t=1"),
        ("＝1", "'＝1"),
        ("\x1b[31mred", "'\\x1b[31mred"),
        ("a\\\u202eb", "'a\\\\\\u202eb"),
        ("'=1", "''=1"),
        *((plain, plain) for plain in ("a", "'a", "C:\\x1b", "-", "+", "-1.5", "+1e-3", "-inf")),
    ],
)
def test_cells(text, cell):
    assert protect_cell(text) == cell
    assert restore_cell(cell) == text


@given(st.text() | HOSTILE)
def test_every_text_is_read_back_and_none_is_obeyed(text):
    cell = protect_cell(text)
    assert restore_cell(cell) == text
    assert printable(cell) == cell
    restore_cell(text)  # of any other origin


def test_numbers_stay_and_names_are_read_back_from_a_file(tmp_path):
    names = ["=1+1", "@SUM(A1)", "'+x", "\x1b]0;x\x07", "-1", "a"]
    rows = [{"bag": name, "=p": -0.5, "n": -3, "t": True} for name in names]
    write_csv(tmp_path / "t.csv", ["bag", "=p", "n", "t", "none"], rows)
    plain = list(csv.reader(io.StringIO(csv_text(["bag", "=p", "n", "t", "none"], rows))))
    assert plain[0] == ["bag", "'=p", "n", "t", "none"]
    assert [row[1:] for row in plain[1:]] == [["-0.5", "-3", "True", ""]] * 6
    assert "\x1b" not in (tmp_path / "t.csv").read_text()
    table = TextTable.read(tmp_path / "t.csv")
    assert [row["bag"] for row in table.rows] == names
    assert table.columns == ("bag", "=p", "n", "t", "none")
    assert printable("a\x1b[2J\u202eb\n\tc\udcff") == "a\\x1b[2J\\u202eb\n\tc\\udcff"
