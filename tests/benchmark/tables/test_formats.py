"""Tables read the same in markdown, LaTeX and CSV, whatever text they contain."""

import csv
import io
import re

import pytest

from probsa.benchmark import ResultTable, TableCell, to_csv, to_latex, to_markdown
from probsa.benchmark.tables.table import LATEX, Column, shown, text_cell, write_table

COLUMNS = (
    Column(key="method", title="method"),
    Column(key="a_auroc", title="AUROC", group="a_b", unit="percent"),
    Column(key="a_delta", title="Δ", group="a_b", unit="points"),
    Column(key="p", title="p", unit="p"),
    Column(key="n", title="bags", unit="count"),
)
TABLE = ResultTable(
    name="a_table",
    title="Shares & more",
    columns=COLUMNS,
    rows=(
        (
            text_cell("abmil λ=0.1"),
            TableCell(value=0.90189, sd=0.00482, bold=True),
            TableCell(value=0.0123, low=-0.004, high=0.0301),
            TableCell(value=0.0004),
            TableCell(value=82.0),
        ),
        (
            text_cell("50%_a|b"),
            TableCell(value=0.5),
            TableCell(value=-0.0001),
            TableCell(),
            TableCell(value=7.0),
        ),
    ),
    footnotes=("* odd: 3 % of {a}; p < 0.05.",),
    follow=(
        ResultTable(
            name="below",
            title="Below",
            columns=(Column(key="x", title="x", unit="number"),),
            rows=((TableCell(value=87.9, sd=1.17),),),
        ),
    ),
)


@pytest.mark.parametrize(
    ("unit", "entry", "text"),
    [
        ("percent", TableCell(value=0.90189, sd=0.00482), "90.2 ± 0.5"),
        ("percent", TableCell(value=1.0, low=0.98, high=1.0), "100.0 [98.0, 100.0]"),
        ("points", TableCell(value=0.0123, low=-0.004, high=0.0301), "+1.2 [-0.4, +3.0]"),
        ("points", TableCell(value=-0.0001), "0.0"),
        ("points", TableCell(value=0.02, sd=0.01), "+2.0 ± 1.0"),
        ("rank", TableCell(value=1.8333333, sd=1.3292), "1.833 ± 1.329"),
        ("p", TableCell(value=0.0004), "<0.001"),
        ("p", TableCell(value=0.0312), "0.031"),
        ("count", TableCell(value=82.0), "82"),
        ("percent", TableCell(), "-"),
        ("percent", TableCell(text="one class"), "one class"),
        ("percent", TableCell(value=float("nan")), "-"),
    ],
)
def test_numbers_read_as_their_unit_says(unit, entry, text):
    assert shown(entry, Column(key="x", title="x", unit=unit)) == text


def test_markdown_word_for_word():
    assert to_markdown(TABLE) == (
        "## Shares & more\n"
        "\n"
        "| method | a_b AUROC | a_b Δ | p | bags |\n"
        "| :--- | ---: | ---: | ---: | ---: |\n"
        "| abmil λ=0.1 | **90.2 ± 0.5** | +1.2 [-0.4, +3.0] | &lt;0.001 | 82 |\n"
        "| 50%_a\\|b | 50.0 | 0.0 | - | 7 |\n"
        "\n"
        "- \\* odd: 3 % of {a}; p &lt; 0.05.\n"
        "\n"
        "### Below\n"
        "\n"
        "| x |\n"
        "| ---: |\n"
        "| 87.900 ± 1.170 |\n"
    )


def test_csv_has_plain_numbers_in_columns_of_their_own():
    rows = list(csv.reader(io.StringIO(to_csv(TABLE))))
    assert rows == [
        [
            *("method", "a_auroc", "a_auroc_sd", "a_auroc_winner"),
            *("a_delta", "a_delta_low", "a_delta_high", "p", "n"),
        ],
        ["abmil λ=0.1", "90.189", "0.482", "1", "1.23", "-0.4", "3.01", "0.0004", "82"],
        ["50%_a|b", "50.0", "", "0", "-0.01", "", "", "", "7"],
    ]


def test_latex_is_a_whole_tabular_that_is_escaped():
    comments, _, text = to_latex(TABLE).rpartition("\n% * odd")
    assert comments.splitlines()[-1] == "% Shares & more"
    _, _, text = text.partition("\n")
    assert text.isascii()
    assert text.startswith(r"\begin{tabular}{@{}lrrrr@{}}") and text.endswith("\\end{tabular}\n")
    assert len(re.findall(r"(?<!\\)\$", text)) % 2 == 0
    body = text.partition(r"\toprule")[2].partition(r"\bottomrule")[0]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    for row in rows:
        cells = len(re.findall(r"(?<!\\)&", row)) + 1
        cells += sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d)\}", row))
        assert cells == len(COLUMNS), row
    assert r"\multicolumn{2}{c}{a\_b}" in body
    assert r"\textbf{90.2 $\pm$ 0.5}" in body
    assert r"+1.2 {[}$-$0.4, +3.0] &" in body
    assert r"50\%\_a$|$b" in body and r"abmil $\lambda$=0.1" in body
    assert r"$<$0.001" in body


@pytest.mark.parametrize("character", [*LATEX, *"&%$#_{}\\~^"])
def test_every_special_character_of_latex_is_escaped(character):
    table = ResultTable(
        name="t",
        title="t",
        columns=(Column(key="a", title=f"in {character}", group=f"of {character}"),),
        rows=((text_cell(f"{character} x"),),),
    )
    text = to_latex(table).partition(r"\begin{tabular}")[2]
    assert text.isascii()
    plain = re.sub(r"\\[%$#_{}&]|\\text\w+ ?|\$[^$]*\$|\{\[\}", "", text.partition("\n")[2])
    assert character in "{}\\&" or character not in plain


def test_words_keep_hyphens_and_numbers_get_a_minus():
    columns = (Column(key="a", title="a"), Column(key="b", title="b", unit="points"))
    rows = ((text_cell("clam-sb fold-1"), TableCell(value=-0.01, low=-0.03, high=0.0)),)
    text = to_latex(ResultTable(name="t", title="t", columns=columns, rows=rows))
    assert "clam-sb fold-1 & $-$1.0 {[}$-$3.0, 0.0]" in text


def test_a_row_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="row 0"):
        ResultTable(
            name="t",
            title="t",
            columns=(Column(key="a", title="a"),),
            rows=((text_cell("a"), text_cell("b")),),
        )


def test_files_are_written_whole_with_those_that_follow(tmp_path):
    made = write_table(TABLE, tmp_path / "tables")
    names = {"a_table.md", "a_table.tex", "a_table.csv", "below.tex", "below.csv"}
    assert {p.name for p in made} == names == {p.name for p in (tmp_path / "tables").iterdir()}
    before = {p: p.read_bytes() for p in made}
    write_table(TABLE, tmp_path / "tables")
    assert {p: p.read_bytes() for p in made} == before
