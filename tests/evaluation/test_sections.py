"""Whatever a report consists of, it can be printed, stored and read as a data frame."""

import importlib
import io
import json
import pkgutil
import re
from dataclasses import is_dataclass, replace

import numpy as np
import pytest
from rich.console import Console
from support.made_reports import write_report_folder

import probsa
from probsa.evaluation import WITHIN_BAGS, WITHIN_TITLES, GuaranteeOptions, Section, evaluate
from probsa.evaluation.instances.measures import WRONG_CALLS
from probsa.evaluation.words import INSTANCE_DETECTORS, metric_titles
from probsa.tasks import TASKS


def printed(report, *, full):
    console = Console(file=io.StringIO(), width=200)
    report.render(console, full=full)
    return console.file.getvalue()


@pytest.fixture(scope="module", params=list(TASKS))
def report(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "p"
    write_report_folder(folder, request.param)
    options = None
    if TASKS[request.param].coverage_by:
        options = GuaranteeOptions(coverage=0.8)
    return evaluate(folder, bootstrap=20, guarantees=options)


def test_a_report_of_every_task_is_a_data_frame_and_json(report):
    assert all(isinstance(section, Section) for section in report.sections)
    stored = json.loads(json.dumps(report.to_dict()))
    for section in report.sections:
        assert section.key in stored
    frame = report.to_frame()
    assert set(frame["of"]) >= {"bags", "instances", "patients"}
    assert len(frame[frame["of"] == "bags"]) == len(report.metrics)
    for column in ("value", "low", "high"):
        assert frame[column].dtype == np.float64
    missing = frame["value"].isna()
    assert frame.loc[missing, "reason"].notna().all()
    assert "nan" not in printed(report, full=True)


def test_every_number_of_a_report_has_a_title(report):
    """A key such as `macro_f1` in a table means that nobody gave the metric a title."""
    tables = [report.metrics]
    for section in report.sections:
        tables += section.metrics.values()
        for table in ("by_part", "rivals"):
            tables += section.values.get(table, {}).values()
    keys = {name for table in tables for name in table}
    assert all(title for table in tables for title in metric_titles(table).values())
    text = printed(report, full=True).replace(str(report.folder), "")
    raw = {key for key in keys if "_" in key and re.search(rf"\b{key}\b", text)}
    assert raw == set()


def test_every_measure_of_instances_has_a_title():
    assert {*WITHIN_BAGS} <= {*WITHIN_TITLES}
    detectors = {f"error_auroc_{name}" for name in INSTANCE_DETECTORS}
    assert {*WRONG_CALLS} <= {"error_rate"} | detectors


def test_a_metric_of_every_task_has_a_title_where_classes_are_missing(tmp_path):
    """Metrics that are undefined in some data have their titles all the same."""
    for task in TASKS:
        write_report_folder(tmp_path / task, task, bags=6)
        report = evaluate(tmp_path / task, bootstrap=0)
        assert all(metric_titles(report.metrics).values())


def test_whatever_warns_does_so_on_the_first_screen(report):
    warned = replace(report, warnings=(*report.warnings, "beware of it", "and of that"))
    assert warned.to_dict()["warnings"] == list(warned.warnings)
    raised = [w for section in warned.sections for w in section.warnings]
    assert {*raised} <= {*warned.warnings}
    for full in (False, True):
        text = printed(warned, full=full)
        for warning in warned.warnings:
            assert text.count(f"warning: {warning}") == 1


def test_a_mean_that_leaves_out_a_finding_says_so_on_the_first_screen(tmp_path):
    folder = write_report_folder(tmp_path / "p", "multilabel")
    path = folder / "predictions.csv"
    rows = path.read_text().splitlines()
    column = rows[0].split(",").index("label_high")
    cells = [row.split(",") for row in rows[1:]]
    for row in cells:
        row[column] = "0"
    path.write_text("\n".join([rows[0], *(",".join(row) for row in cells)]) + "\n")
    report = evaluate(folder, bootstrap=0)
    (target,) = [section for section in report.sections if section.key == "target"]
    assert len(target.warnings) >= 1
    text = printed(report, full=False)
    assert all(warning in text for warning in target.warnings)


def test_there_is_one_type_of_section():
    """Whatever is printed with a key of its own is a `Section`, so that a report can read it."""
    found = set()
    for module in pkgutil.walk_packages(probsa.__path__, "probsa."):
        if module.name.startswith(("probsa.evaluation", "probsa.workflow", "probsa.benchmark")):
            members = vars(importlib.import_module(module.name)).values()
            classes = [c for c in members if isinstance(c, type) and is_dataclass(c)]
            found |= {c for c in classes if hasattr(c, "render") and hasattr(c, "key")}
    assert found == {Section}
