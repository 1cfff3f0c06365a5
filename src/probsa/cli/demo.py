"""The demo: the complete workflow on slides that the package generates itself.

A deterministic and a probabilistic model are trained on the same slides, evaluated and drawn with
the same functions as any other run.
"""

import html
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from ..core import write_json, write_text
from ..datasets import LESION_DIGIT, LOOKALIKE_DIGITS, write_digit_slides
from ..errors import OutputExists
from ..evaluation import Report, read_predictions
from ..maps import render_map
from ..statistics import Metric
from ..training import DataConfig, Reporter, RunConfig, TrainingConfig
from ..workflow import train_and_report

MODELS = ("abmil", "abmil-probsa-diag")
SLIDES = 320
EPOCHS = 40
SHOWN = 3
"""Number of slides with maps: the first positive test slides, not the best ones."""
MARK = "demo.json"
"""File that marks a folder as written by a demo, so that a later demo may replace it."""
ROWS = (
    ("bags", "auroc", "bag AUROC", "separates positive from negative slides"),
    ("bags", "nll", "bag negative log-likelihood", "smaller is better"),
    (
        "instances",
        "auroc_positive_bags",
        "patch AUROC in positive slides",
        "the mean map finds the lesions",
    ),
    (
        "instances",
        "average_precision_positive_bags",
        "patch average precision in positive slides",
        "the same, but more sensitive to false positives if lesions are rare",
    ),
    (
        "instances",
        "error_auroc_variance",
        "wrong patches found by the variance σ² (AUROC)",
        "the variance map finds the errors of the mean map",
    ),
    (
        "instances",
        "error_auroc_margin",
        "… found by the mean map (−|s|)",
        "the same from the mean map alone (distance to its threshold), for comparison with σ²",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoResult:
    """The files and the metrics of a demo."""

    out: Path
    page: Path
    maps: tuple[Path, ...]
    reports: Mapping[str, Report]
    """Evaluation on the test slides, by model name."""
    seconds: float

    def metric(self, model: str, kind: str, key: str) -> Metric | None:
        """Return one metric of one model, or None if it was not computed."""
        report = self.reports[model]
        return ((report.instances or {}) if kind == "instances" else report.metrics).get(key)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "out": str(self.out),
            "page": str(self.page),
            "maps": [str(m) for m in self.maps],
            "seconds": round(self.seconds, 1),
            "models": {name: r.to_dict() for name, r in self.reports.items()},
        }

    def render(self, console: Console) -> None:
        """Print the comparison as a table."""
        bags = next(iter(self.reports.values())).bags
        table = Table(title=f"{bags} test slides: value [95 % interval]", title_justify="left")
        table.add_column("")
        for name in self.reports:
            table.add_column(name)
        for kind, key, title, _ in ROWS:
            table.add_row(title, *(_cell(self.metric(m, kind, key)) for m in self.reports))
        console.print(table)
        console.print("One run of each model: differences within the intervals mean nothing.")
        console.print(f"{self.seconds:.0f} s. Maps and what they mean: {self.page}", markup=False)


def run_demo(
    out: Path,
    *,
    seed: int = 0,
    slides: int = SLIDES,
    epochs: int = EPOCHS,
    reporter: Reporter | None = None,
) -> DemoResult:
    """Generate slides, train both models, evaluate them and draw maps.

    Args:
        out: folder to write to; the folder of an earlier demo is replaced.
        seed: seed of the slides and of both runs.
        slides: number of slides; half of them are for training, three tenths for testing.
        epochs: number of epochs of each run.
        reporter: informed of every epoch.

    Raises:
        OutputExists: `out` contains something that a demo did not write.
    """
    started, threads = time.perf_counter(), torch.get_num_threads()
    _claim(out)
    write_digit_slides(out / "data", bags=slides, seed=seed)
    reports = {}
    try:
        for name in MODELS:
            if reporter is not None:
                reporter.note(f"training {name}")
            config = run_config(out / "data", name, seed=seed, epochs=epochs)
            trained = train_and_report(config, out / "runs" / name, maps="none", reporter=reporter)
            assert trained is not None, "a demo runs in one process"
            reports[name] = trained.report
    finally:
        torch.set_num_threads(threads)
    maps = _draw(out)
    page = out / "index.html"
    result = DemoResult(
        out=out,
        page=page,
        maps=tuple(path for paths in maps.values() for path in paths.values()),
        reports=reports,
        seconds=time.perf_counter() - started,
    )
    write_text(page, _page(result, maps))
    write_json(out / MARK, {"probsa": "demo", **result.to_dict()})
    return result


def run_config(data: Path, model: str, *, seed: int, epochs: int) -> RunConfig:
    """Return the configuration of a run, equal for both models except for posterior samples.

    The slides are small, so the model is smaller and the learning rate larger than the paper's.
    λ = 0.1 had a higher validation AUROC than the cyclical default on three sets of slides with
    different noise.
    """
    arguments: dict[str, Any] = {"embed": 64, "attention_dim": 32}
    if model != "abmil":
        arguments |= {"samples": 16, "predict_samples": 200}
    return RunConfig(
        data=DataConfig(features=data / "features", labels=data / "labels.csv"),
        model=model,
        model_arguments=arguments,
        training=TrainingConfig(
            epochs=epochs,
            batch_size=8,
            learning_rate=2e-3,
            warmup_epochs=5,
            kl_weight=0.1,
            device="cpu",
            threads=1,  # with matrices of this size, a second thread makes it slower
            tensorboard=False,
        ),
        seed=seed,
    )


def _claim(out: Path) -> None:
    """Create the folder, or delete from it only what an earlier demo wrote."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not _is_demo(out))):
        raise OutputExists(f"{out} exists and is not the folder of a demo: give another --out")
    for name in ("data", "runs", "maps"):
        shutil.rmtree(out / name, ignore_errors=True)
    (out / "index.html").unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / MARK, {"probsa": "demo", "finished": False})


def _is_demo(out: Path) -> bool:
    try:
        mark = json.loads((out / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(mark, dict) and mark.get("probsa") == "demo"


def _draw(out: Path) -> dict[str, dict[str, Path]]:
    """Draw the maps of the first positive test slides; return the files by slide and model."""
    maps: dict[str, dict[str, Path]] = {}
    for model in MODELS:
        predictions = read_predictions(out / "runs" / model / "predictions")
        table = zip(predictions.bags, predictions.parts, predictions.labels, strict=True)
        for bag in [b for b, part, label in table if part == "test" and label == 1][:SHOWN]:
            path = out / "maps" / f"{bag}-{model}.png"
            p = predictions.instances(bag)
            render_map(p, path, title=f"{bag} · {model} · p = {p.probability[0]:.2f}")
            maps.setdefault(bag, {})[model] = path
    return maps


def _cell(m: Metric | None) -> str:
    if m is None:
        return "-"
    if m.value is None:
        return f"undefined: {m.reason}"
    interval = "" if m.low is None else f" [{m.low:.3f}, {m.high:.3f}]"
    return f"{m.value:.3f}{interval}"


def _page(result: DemoResult, maps: Mapping[str, Mapping[str, Path]]) -> str:
    """Return the HTML page; it links to the pictures by relative paths."""
    columns = "".join(f"<th>{html.escape(m)}</th>" for m in MODELS)
    rows = "\n".join(
        f"<tr><td>{html.escape(title)}<br><small>{html.escape(why)}</small></td>"
        + "".join(f"<td>{html.escape(_cell(result.metric(m, kind, key)))}</td>" for m in MODELS)
        + "</tr>"
        for kind, key, title, why in ROWS
    )
    figures = "\n".join(
        f"<h3>{html.escape(bag)}</h3>\n"
        + "\n".join(
            f'<figure><img src="{path.relative_to(result.out).as_posix()}" '
            f'alt="Maps of {html.escape(bag)} by {html.escape(model)}">'
            f"<figcaption>{html.escape(CAPTIONS[model])}</figcaption></figure>"
            for model, path in paths.items()
        )
        for bag, paths in maps.items()
    )
    bags = next(iter(result.reports.values())).bags
    return PAGE.format(
        lesion=LESION_DIGIT,
        alike=", ".join(map(str, LOOKALIKE_DIGITS)),
        bags=bags,
        columns=columns,
        rows=rows,
        figures=figures,
        shown=len(maps),
    )


CAPTIONS = {
    "abmil": "ABMIL. Left: the attention to each patch; it has no variance. "
    "Right: the true lesions.",
    "abmil-probsa-diag": "ProbSA. Left: the mean of the attention to each patch, smoothed over "
    "neighbouring patches. Middle: its variance, which shows how uncertain the model is. "
    "Right: the true lesions.",
}
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>probsa demo</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1b1b; background: #fff; }}
table {{ border-collapse: collapse; }}
th, td {{ border-bottom: 1px solid #ccc; padding: .3rem .8rem; text-align: left; }}
figure {{ margin: 1rem 0 2rem; }}
img {{ max-width: 100%; border: 1px solid #ddd; }}
figcaption, small {{ color: #555; }}
pre {{ background: #f3f3f3; padding: .8rem; overflow-x: auto; }}
</style>
</head>
<body>
<h1>probsa demo</h1>
<p>These slides consist of handwritten digits: every patch is one digit with noise, and the tissue
is irregular. A <b>positive</b> slide contains one or two contiguous lesions of the digit {lesion};
a negative slide contains none. Both contain regions of similar digits ({alike}). Two models were
trained with one label per slide, without knowing which patches belong to lesions.</p>
<h2>How well the models perform</h2>
<table>
<tr><th>{bags} test slides</th>{columns}</tr>
{rows}
</table>
<p>Values with 95 % intervals over slides. An AUROC of 0.5 is chance, 1 is perfect. This is a single
run of each model on one set of slides: a difference smaller than the intervals means nothing, and
another <code>seed</code> may reverse it.</p>
<h2>Where the models look, and how certain they are</h2>
<p>These are the first {shown} positive test slides, not the best ones. Every square is a patch;
grey is glass without tissue. The <b>mean</b> map shows the evidence: yellow patches have the most
weight in the prediction. The <b>variance</b> map shows the uncertainty: for bright patches, the
model is least certain of their weight. Colours range from the smallest to the largest value of each
slide (per-bag scale), so compare patches within a map, not colours between maps.</p>
{figures}
<h2>The same on your own data</h2>
<p>All you need is a folder with one HDF5 file of features per slide or scan (files of TRIDENT and
CLAM are read as they are) and a table <code>bag,label</code>:</p>
<pre>probsa train --features FEATURES --labels labels.csv --model abmil-probsa-diag --out runs/a
probsa predict runs/a --features FEATURES --out preds
probsa evaluate preds --labels labels.csv
probsa map preds --out maps</pre>
<p>The slides of this demo are such a data set: <code>data/features</code> and
<code>data/labels.csv</code> next to this page.</p>
</body>
</html>
"""
