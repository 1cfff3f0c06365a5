"""Maps, lists and data frames of every task, of tiny runs: what they say."""

import json
from dataclasses import asdict

import pytest
from support.made_targets import TARGETS, run_keys, write_targets

from probsa.core import TextTable
from probsa.evaluation import read_predictions, truth_of, verdict_of
from probsa.exports import ExportSettings, export_folder
from probsa.exports.quantities import channels
from probsa.maps import render_folder, resolve
from probsa.maps.draw import heading
from probsa.training import read_run, train
from probsa.view import ViewData
from probsa.workflow import predict_run


def labels_of(p) -> set[str]:
    """Return the names of the quantities that tiles hold."""
    return {channel.label for channel in channels(p, ())}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The predictions of a tiny run of each task."""
    folder = tmp_path_factory.mktemp("targets")
    data = write_targets(folder / "data", bags=24)
    found = {}
    for task in TARGETS:
        run = train(read_run(None, run_keys(data, task)), folder / task)
        predict_run(run, extras=False)
        found[task] = read_predictions(run.predictions)
    return found


@pytest.mark.parametrize(
    "task",
    [
        "multiclass",
        pytest.param("binary", marks=pytest.mark.nightly),
        pytest.param("ordinal", marks=pytest.mark.nightly),
        "multilabel",
        pytest.param("regression", marks=pytest.mark.nightly),
        "survival",
    ],
)
def test_a_map_of_every_task_is_drawn(tables, tmp_path, task):
    table = tables[task]
    bag = table.bags[0]
    assert render_folder(table.folder, tmp_path, bags=[bag]) == []
    assert (tmp_path / f"{bag}.png").stat().st_size > 10_000


def test_headings_say_what_is_predicted(tables):
    headings = {}
    for task, table in tables.items():
        p = table.instances(table.bags[0])
        headings[task] = heading(p, verdict=verdict_of(table, p)).line
    assert headings["binary"].startswith("s06 · class ")
    assert ", threshold 0." in headings["binary"]
    assert "grade " in headings["ordinal"] and "threshold 0." in headings["multilabel"]
    assert "p(oedema) 0." in headings["multilabel"] and "thickness " in headings["regression"]
    assert "risk " in headings["survival"] and "S(" in headings["survival"]


def test_captions_say_what_colours_speak_for(tables):
    aims = {
        "ordinal": "higher grade",
        "multilabel": "the finding",
        "regression": "the value",
        "survival": "the risk",
    }
    captions = {task: resolve(table, "auto").caption for task, table in tables.items()}
    for task, aim in aims.items():
        up, down = tables[task].of_task.words.towards
        assert aim in up
        assert f"red {up}, blue {down}" in captions[task]
        # classes have no direction
        assert f"red {up}" not in captions["binary"]
    for task, raised in (("survival", "the risk"), ("binary", "the logit of the class")):
        assert tables[task].of_task.words.raised == raised
        assert f"red raises {raised}" in resolve(tables[task], "contribution").caption


def words_of(table):
    return table.of_task.page_words(table.outputs, table.metadata.target)


def test_the_page_has_the_words_of_the_task(tables):
    for task, table in tables.items():
        view = ViewData(table.folder)
        script = view.slides_script().decode()
        page = json.loads(script[script.index("{") : script.rindex("}") + 1])
        row = next(r for r in page["rows"] if r["name"] == "s06")
        k = table.bags.index("s06")
        assert row["label"] == truth_of(table, k)
        assert row["label"] != ""
        assert row["probability"] is not None and row["spread"] > 0
        assert page["words"] == asdict(words_of(table))
        for column in range(2 if task == "multilabel" else 1):
            assert b"evidence" in view.values_script(0, column)
        assert (b"necrosis" in view.map_script(0)) == (task == "multilabel")
        view.close()
    assert words_of(tables["binary"]).call_hint == "The predicted class"
    assert words_of(tables["regression"]).measure == "thickness"
    table = tables["regression"]
    rows = {r.name: r for r in ViewData(table.folder).rows}
    for row in TextTable.read(table.folder / "predictions.csv").rows:
        outside = not float(row["q05"]) <= float(row["label"]) <= float(row["q95"])
        assert rows[row["bag"]].wrong == outside
    assert all(r.wrong is None for r in ViewData(tables["survival"].folder).rows)


def test_exports_and_frames_name_their_columns(tables, tmp_path):
    for task, table in tables.items():
        settings = ExportSettings(geojson="tiles")
        assert not export_folder(table.folder, tmp_path / task, settings, bags=["s06"]).failures
        frame = table.to_frame()
        stored = TextTable.read(table.folder / "predictions.csv").rows
        assert {*frame.columns} == {*stored[0], "call"}, task
        assert frame["bag"].tolist() == [row["bag"] for row in stored]
    several = tables["multilabel"].instances("s06")
    names = {"mean (evidence) oedema", "mean (evidence) necrosis", "probability oedema"}
    assert names <= labels_of(several)
    assert "evidence_mean_oedema" in several.to_frame().columns
    # a risk is that of the bag, not of its patches
    assert "probability" not in labels_of(tables["survival"].instances("s06"))
    assert "probability" in labels_of(tables["binary"].instances("s06"))
