"""The demo: three models on slides of digits, their metrics and maps, and the viewer's page.

ABMIL, the paper's ProbSA and the default recipe are trained on the same slides, evaluated, drawn
and exported with the same functions as any other run.
"""

import time
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..core import (
    files_matching,
    foreign,
    foreign_files,
    open_output,
    read_json,
    remove_written_folder,
    write_json,
)
from ..datasets import LESION_DIGIT, write_digit_pictures, write_digit_slides
from ..errors import InputError
from ..evaluation import InstanceTable, centre, instance_metrics, read_predictions
from ..maps import draw_doubt, save_figure
from ..statistics import Metric
from ..tasks import format_probability
from ..training import Reporter, RunConfig, read_run, thread_count, train
from ..view import ViewData, export_page
from ..workflow import Trained, finish_run, train_and_report
from .demo_folder import MARK, check_folder

DEFAULT = "default"
"""What the demo calls the run by the default recipe."""
MODELS = {"abmil": "ABMIL", "abmil-probsa-diag": "ProbSA", DEFAULT: "default recipe"}
MEMBERS = 2
STRIDE = 32
"""Side of a patch in pixels of the slides: small, so that their pictures are."""
SIZE = (12, 12)
"""Columns and rows of a slide: few, to save time."""
CHANCE = 0.5
"""AUROC of chance."""
SHOWN = 3
"""Number of slides with drawn maps: the first positive test slides, not the best ones."""
ROWS = {
    "auroc": "bag AUROC",
    "auroc_positive_bags": "patch AUROC in positive slides",
    "average_precision_positive_bags": "patch average precision in positive slides",
    "error_auroc_doubt": "wrong patches found by P(wrong) (AUROC)",
    "error_auroc_margin": "… by the mean's distance from the threshold",
    "error_auroc_variance": "… by the variance",
}
"""The metrics that are printed, and their titles."""
REMARKS = f"""
A positive slide has lesions of the digit {LESION_DIGIT}; regions of similar digits are no lesions.
One run of each model on one set of slides: differences within the intervals mean nothing.
A map must beat nearness to the centre, and P(wrong) the mean's distance, to show anything.
A score that is worse than chance is largest where patches are right: it finds no wrong ones.
ABMIL and ProbSA have smaller networks and larger learning rates, which suit these slides; the
default recipe had half of its epochs and {{members}} members, to save time.

{{seconds}} s. The default recipe on all held-out slides, with the true lesions: {{page}}
All three on the first positive test slides, not the best ones: {{out}}/maps
On your own data: probsa train --features DIR --labels labels.csv --out RUN"""


def run_demo(
    out: Path, *, slides: int = 240, epochs: int = 36, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Generate slides, train and evaluate the models, draw maps; return what `--json` prints.

    Args:
        out: folder to write to; the folder of an earlier demo is replaced.
        slides: number of slides; half of them are for training, three tenths for testing.
        epochs: number of epochs of ABMIL and ProbSA; the default recipe has half as many.
        reporter: informed of every epoch.

    Raises:
        OutputExists: `out` contains something that a demo did not write.
    """
    started = time.perf_counter()
    check_folder(out)
    open_output(out, earlier=_earlier_files)
    folders = [out / name for name in ("data", "runs", "maps", "page")]
    for folder in folders:
        for path in foreign_files(folder):  # before anything is removed
            raise foreign(path)
    for folder in folders:
        remove_written_folder(folder)
    write_json(out / MARK, {"finished": False})
    digit_slides = write_digit_slides(out / "data", bags=slides, seed=0, stride=STRIDE, size=SIZE)
    held_out = [slide for slide in digit_slides if slide.part != "train"]
    write_digit_pictures(out / "data" / "slides", held_out, stride=STRIDE, size=SIZE)
    models = {}
    for model, title in MODELS.items():
        if reporter is not None:
            reporter.note(f"training {title}")
        config = run_config(out / "data", model, epochs=epochs)
        models[model] = _train(config, out / "runs" / model, reporter).report.to_dict()
    result = {
        "out": str(out),
        "page": str(_page(out) / "index.html"),
        **_maps(out),
        "seconds": round(time.perf_counter() - started),
        "models": models,
    }
    write_json(out / MARK, result)
    return result


def _earlier_files(out: Path) -> list[Path]:
    """List the files that the demo of a version without ledgers wrote, if it did."""
    try:
        mark = read_json(out / MARK)
    except InputError:  # there is none, or it is another file
        return []
    if not isinstance(mark, dict) or not mark.keys() & {"finished", "models"}:
        return []
    folders = ("data", "runs", "maps", "page")
    return files_matching(out, (MARK, *(f"{name}/**/*" for name in folders)))


def run_config(data: Path, model: str, *, epochs: int) -> RunConfig:
    """Return the configuration of a run.

    Those of ABMIL and ProbSA are equal except for posterior samples. The slides are small, so the
    model is smaller and the learning rate larger than the paper's. λ = 0.1 had a higher validation
    AUROC than the cyclical default on three sets of slides with different noise. The default recipe
    is as it is, but with fewer epochs, members and samples, so that the demo does not take long.
    """
    keys: dict[str, Any] = {
        "features": str(data / "features"),
        "labels": str(data / "labels.csv"),
        "device": "cpu",
        "threads": 1,  # with matrices of this size, a second thread makes it slower
        "tensorboard": False,
        "seed": 0,
    }
    if model == DEFAULT:
        keys |= {"epochs": max(1, epochs // 2), "members": MEMBERS, "predict_samples": 200}
        return read_run(None, keys)
    if model != "abmil":
        keys |= {"samples": 16, "predict_samples": 200}
    keys |= {"model": model, "embed": 64, "attention_dim": 32, "weight_scale": "median"}
    keys |= {"batch_size": 8, "learning_rate": 2e-3, "warmup_epochs": 5, "kl_weight": 0.1}
    return read_run(None, {**keys, "epochs": epochs})


def _train(config: RunConfig, out: Path, reporter: Reporter | None) -> Trained:
    """Train and evaluate a run; only that of the default recipe gets what its page shows."""
    if out.name == DEFAULT:
        trained = train_and_report(config, out, maps="none", reporter=reporter)
        assert trained is not None, "a demo runs in one process"
        return trained
    with thread_count(config.training.threads):
        run = train(config, out, reporter=reporter)
        return finish_run(run, maps="none", extras=False, reporter=reporter)


def _page(out: Path) -> Path:
    """Write the page of the default recipe over the pictures of its slides; return its folder."""
    with closing(ViewData(out / "runs" / DEFAULT, slides=out / "data" / "slides")) as data:
        return export_page(data, out / "page").folder


def _maps(out: Path) -> dict[str, Any]:
    """Draw the models side by side; return the pictures and the metrics of a map of nothing."""
    rivals = {m: read_predictions(out / "runs" / m / "predictions") for m in MODELS}
    table = rivals.pop(DEFAULT)
    is_positive = {bag: y == 1 for bag, y in zip(table.bags, table.labels, strict=True)}
    test = [bag for bag, part in zip(table.bags, table.parts, strict=True) if part == "test"]
    positive_test = [bag for bag in test if is_positive[bag]]
    pictures: list[str] = []
    for bag in positive_test[:SHOWN]:
        p = table.instances(bag)
        others = {f"{MODELS[m]}, attention": t.instances(bag) for m, t in rivals.items()}
        title = f"{bag} · p = {format_probability(float(p.probability[0]))} by the default recipe"
        picture = out / "maps" / f"{bag}.png"
        save_figure(draw_doubt(p, name="default", others=others, title=title), picture)
        pictures.append(str(picture))
    instances = InstanceTable.of(
        map(table.instances, test),
        positive=lambda p: is_positive[p.name],
        more=lambda p: {"centre": centre(p.coords)},
    )
    null = instance_metrics([instances], null_map="centre", bootstrap=500)
    metrics = ("auroc_positive_bags", "average_precision_positive_bags")
    return {"maps": pictures, "null": {key: null[key].to_dict() for key in metrics}}


def beside_chance(auroc: Metric) -> str:
    """Say that an AUROC is not shown better than chance, or worse; empty if it is better."""
    if auroc.value is None:
        return ""
    if auroc.high is not None and auroc.high < CHANCE:
        return "worse than chance"
    low = auroc.value if auroc.low is None else auroc.low
    return "not better than chance" if low <= CHANCE else ""


def render(result: dict[str, Any], console: Console) -> None:
    """Print the comparison as a table, and what it does and does not show."""
    title = f"{result['models'][DEFAULT]['bags']} test slides: value [95 % interval]"
    table = Table("", *MODELS.values(), "nearness to the centre", title=title)
    columns: list[dict[str, Any]] = []
    for model in result["models"].values():
        columns.append({**model["instances"], "auroc": model["metrics"]["auroc"]})
    columns.append(result["null"])
    for key, heading in ROWS.items():
        cells: list[str] = []
        for column in columns:
            cells.append(_cell(Metric.from_dict(column[key]), key) if key in column else "")
        table.add_row(heading, *cells)
    console.print(table)
    console.print(REMARKS.format(members=MEMBERS, **result), markup=False, soft_wrap=True)


def _cell(metric: Metric, key: str) -> str:
    """Return a metric in words, an AUROC with what it says of chance below it."""
    text = metric.reason or str(metric)
    verdict = beside_chance(metric) if "auroc" in key else ""
    return f"{text}\n{verdict}" if verdict else text
