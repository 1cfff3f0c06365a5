"""Tables of text as spreadsheets, pandas and people write them, and their errors."""

import codecs
import math

import numpy as np
import pandas as pd
import pytest
from support.refusals import refused

from probsa.core import TextTable, finite_number, is_missing, numbered_lines, read_number
from probsa.errors import TableError

ROWS = [{"bag": "049", "label": "1"}, {"bag": "NA", "label": ""}]


def table(tmp_path, text, **options):
    path = tmp_path / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return TextTable.read(path, **options)


@pytest.mark.parametrize(
    "text",
    [
        "bag,label\n049,1\nNA,\n",
        "bag;label\n049;1\nNA;\n",
        "bag\tlabel\r\n049\t1\r\nNA\t\r\n",
        "bag,label\r049,1\rNA\r",  # a short row
        "\n ,\nbag , label\n\n049, 1\n,\nNA,",
        '"bag","label"\n"049","1"\n"NA",""',
        '"bag";"label"\n"049";1\nNA;',
        "bag,label,,\n049,1,,\nNA,,,\n",  # columns that a spreadsheet added
        "\ufeffbag,label\n049,1\nNA,\n",
        "bag\tlabel\n049\t1\nNA\t\n".encode("utf-16"),
        codecs.BOM_UTF16_BE + "bag,label\n049,1\nNA,\n".encode("utf-16-be"),
    ],
)
def test_what_other_programs_write_is_read(tmp_path, text):
    read = table(tmp_path, text)
    assert (read.columns, read.rows) == (("bag", "label"), ROWS)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("bag\na\nb\n", [2, 3]),
        ("\n\nbag,x\n\na,1\n\n,\nb,2", [5, 8]),
        ('bag,x\r\n"a","1\r\n2"\r\n\r\nb,"\r\n\r\n"\r\nc,3\r\n', [2, 5, 8]),
    ],
)
def test_rows_know_their_line(tmp_path, text, lines):
    assert [line for line, _ in table(tmp_path, text).numbered] == lines


def test_an_index_and_a_table_without_a_header(tmp_path):
    read = table(tmp_path, ",bag\n0,a\n1,b\n")
    assert (read.columns, read.rows[1]) == (("bag",), {"": "1", "bag": "b"})
    frame = table(tmp_path, "a,1,1\n\nb,2\n", header=False).frame
    wanted = pd.DataFrame([["a", "1", "1"], ["b", "2", ""]], index=[1, 3])
    np.testing.assert_array_equal(frame.reset_index(), wanted.reset_index())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", None),
        (" ,,\n\n", None),
        ("bag,label\na,1\nb,1,2\n", 3),
        ('\nbag,label\n"a\nb",1\nb,1,\n', 5),
        ("bag,label,x\na,1,2\nb,1", 3),  # the last row is short and has no newline
        ('bag,x\n"a\nb",1\nc,"2\nd,3\n', 4),  # the quotation is never closed
        ("bag,label\na,1\nb,\0\n", 3),
        ("bag,label\n".encode("utf-16-le"), 1),
        (b"bag,label\nM\xfcller,1\n", None),
        (b"PK\x03\x04\xff\xfe", None),
        (b"\xff\xfea", None),
        ("bag,,fold\na,,0\nb,1,1\n", 3),
    ],
)
def test_what_is_no_table_is_refused_with_file_and_line(tmp_path, text, line):
    place = r"t\.csv" if line is None else rf"t\.csv, line {line}"
    refused(TableError, place, table, tmp_path, text, expected="bag,label")


def test_a_missing_file_and_other_columns(tmp_path):
    for path in (tmp_path, tmp_path / "none.csv"):
        refused(TableError, str(path), TextTable.read, path)
    read = table(tmp_path, "case_id,age,slide,age\np,61,a,62\n")
    chosen = read.select("bag", optional=("group", "fold"), synonyms=SYNONYMS)
    assert chosen.rows == [{"bag": "a", "group": "p"}]
    read = table(tmp_path, "bag,Group,folds,spilt,grup,gold,patient_id,age\n")
    known = ("bag", "group", "fold", "split", "patient")
    assert read.misspelt(known) == {
        "Group": "group",
        "folds": "fold",
        "spilt": "split",
        "grup": "group",
        "patient_id": "patient",
    }
    assert finite_number("7") == 7
    assert not any(map(finite_number, ("", "nan", "1,5", str(math.inf))))


SYNONYMS = {"slide": "bag", "slide_id": "bag", "case_id": "group"}


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("bag,lable", "'label'.*'lable'"),
        ("bag,Label", "'label'.*'Label'"),
        ("Slide-ID,label", "'bag'.*'Slide-ID'"),
        ("bag,x", "'label'.*'x' to 'label'"),
        ("bag,label,label", "'label'"),
        ("bag,slide,label", "'bag'.*'slide'"),
    ],
)
def test_columns_that_are_missing_or_there_twice(tmp_path, header, columns):
    read = table(tmp_path, header + "\n")
    refused(TableError, columns, read.select, "bag", "label", synonyms=SYNONYMS)


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        ("a,1\n,2\n", "line 3.*'slide'"),
        ("a,1\nb,1\na,2\n", "line 4.*'a'.*line 2"),
        ("", r"t\.csv"),
    ],
)
def test_names_are_given_once(tmp_path, rows, place):
    read = table(tmp_path, f"slide,label\n{rows}").select("bag", synonyms=SYNONYMS)
    refused(TableError, place, read.by_name, "bag")


@pytest.mark.parametrize(
    ("text", "limits", "number"),
    [
        ("1.5", {}, 1.5),
        ("-1e-3", {}, -0.001),
        ("2.0", {"whole": True, "low": 0.0}, 2),
        ("1", {"low": 0.0, "high": 1.0}, 1),
    ],
)
def test_numbers(text, limits, number):
    assert read_number(text, "x", where="t.csv", **limits) == number


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", {}),
        ("x", {"advice": ". Correct it"}),
        ("inf", {}),
        ("1_0", {}),
        ("1.5", {"whole": True, "low": 0.0}),
        ("1.5", {"low": 0.0, "high": 1.0}),
    ],
)
def test_other_cells_are_refused_with_their_place(text, limits):
    advice = limits.get("advice", "")
    with pytest.raises(TableError, match=rf"t\.csv, line 2: x .*{advice}"):
        read_number(text, "x", where="t.csv, line 2", **limits)


MISSING = (
    "",
    "NA",
    "na",
    "N/A",
    "n/a",
    "#N/A",
    "<NA>",
    "nan",
    "NaN",
    "-nan",
    "NaT",
    "null",
    "NULL",
    "None",
    "-",
    "--",
    "–",
    ".",
    "?",
    "[Not Available]",
    "[Not Applicable]",
    "[Unknown]",
    "not reported",
)
PRESENT = ("none", "unknown", "Unknown", "0", "no", "Nan Li", "nano", "-1", "NA12878", "negative")


def test_words_for_a_missing_value():
    assert [word for word in MISSING if not is_missing(word)] == []
    assert [word for word in PRESENT if is_missing(word)] == []


def test_missing_values_are_emptied_where_they_are_asked_for_and_said(tmp_path):
    text = "bag,slide,x,y\na,s,NA,NA\nNA,t,1,-\nb,u,nan,+\n"
    t = table(tmp_path, text).select("bag", "x", "y", synonyms={"slide": "bagg"})
    blanked = t.blank_missing(["x", "y", "z"])
    assert [row["x"] for row in blanked.rows] == ["", "1", ""]
    # a minus is a value beside a plus
    assert [row["y"] for row in blanked.rows] == ["", "-", "+"]
    assert [row["bag"] for row in blanked.rows] == ["a", "NA", "b"]
    assert dict(blanked.blanked) == {"x": {2: "NA", 4: "nan"}, "y": {2: "NA"}}
    assert len(blanked.missing_notes()) == 2
    assert [row["x"] for row in t.rows] == ["NA", "1", "nan"]
    kept = t.blank_missing(["x"], values=["NA"])
    assert [row["x"] for row in kept.rows] == ["NA", "1", ""]
    assert t.blank_missing([]).missing_notes() == ()


def test_lines_in_words():
    assert numbered_lines([3]) == "line 3"
    assert numbered_lines(range(2, 15)) == "lines 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 3 more"


MISSPELT = {
    "label": ("lable", "labell", "Label", "labels", "lbel"),
    "bag": ("bga", "bags", "Bag", "bagg"),
    "size": ("sise", "szie", "siz"),
}


@pytest.mark.parametrize("column", MISSPELT)
@pytest.mark.parametrize("further", [(), ("weight",)])
def test_each_missing_column_that_is_asked_for_gets_a_suggestion(tmp_path, column, further):
    for written in MISSPELT[column]:
        path = tmp_path / "t.csv"
        path.write_text(f"{written},stage,wieght,zz\n1,2,3,4\n")
        asked = (column, *further)
        with pytest.raises(TableError) as caught:
            TextTable.read(path).select(*asked)
        assert f"Did you mean {written!r}" in str(caught.value)
        assert ("Did you mean 'wieght'" in str(caught.value)) == bool(further)


@pytest.mark.parametrize("header", ["bga,lable", "lable,bga"])
def test_two_misspelt_columns_are_told_apart_by_likeness(tmp_path, header):
    path = tmp_path / "t.csv"
    path.write_text(f"{header}\n1,2\n")
    with pytest.raises(TableError) as caught:
        TextTable.read(path).select("bag", "label")
    for column, likely in (("bag", "bga"), ("label", "lable")):
        assert f"For '{column}': Did you mean '{likely}'" in str(caught.value)
