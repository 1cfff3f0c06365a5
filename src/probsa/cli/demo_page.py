"""The page of the demo: its tables, its pictures, and what they show in plain English."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from ..datasets import LESION_DIGIT, LOOKALIKE_DIGITS
from ..evaluation import Prediction, doubt, instance_scores, instance_variances
from ..statistics import Metric
from ..training import RunConfig

COLUMNS = {
    "abmil": "ABMIL",
    "abmil-probsa-diag": "ProbSA",
    "default": "default recipe",
    "null": "nearness to the centre",
}
"""Titles of the models, by the names of their runs, and of the null map."""
ROWS = (
    ("bags", "auroc", "bag AUROC", "separates positive from negative slides"),
    (
        "instances",
        "auroc_positive_bags",
        "patch AUROC in positive slides",
        "the map of the mean finds the lesions",
    ),
    (
        "instances",
        "average_precision_positive_bags",
        "patch average precision in positive slides",
        "the same, but more sensitive to false positives if lesions are rare",
    ),
    (
        "instances",
        "error_auroc_doubt",
        "wrong patches found by P(wrong) (AUROC)",
        "the map of the doubt finds the errors of the map of the mean",
    ),
    (
        "instances",
        "error_auroc_margin",
        "… found by the mean alone",
        "by its distance from the threshold, for comparison with P(wrong)",
    ),
    (
        "instances",
        "error_auroc_variance",
        "… found by the variance alone",
        "which does not know how far the mean is from the threshold",
    ),
)
"""(kind, key, title, meaning) of the metrics on the page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoFigure:
    """The maps of one slide, and one sentence on what they show."""

    bag: str
    path: Path
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DefaultRun:
    """The demo's run by the default recipe, and the run that the recipe describes."""

    config: RunConfig
    usual: RunConfig

    def sentence(self) -> str:
        """Return what differs between the two, in words."""
        run, usual = self.config.training, self.usual.training
        return (
            f"The default recipe trains {self.config.model}, here with {run.epochs} epochs and "
            f"{run.members} members instead of {usual.epochs} and {usual.members} to save time."
        )


def cell_text(m: Metric | None) -> str:
    """Return a metric with its interval, or why it is undefined."""
    if m is None:
        return "-"
    if m.value is None:
        return f"undefined: {m.reason}"
    interval = "" if m.low is None else f" [{m.low:.3f}, {m.high:.3f}]"
    return f"{m.value:.3f}{interval}"


def figure_sentence(p: Prediction) -> str:
    """Return what the maps of one slide show, by counts and means of this slide's patches."""
    assert p.instance_labels is not None
    mean, unsure, lesion = instance_scores(p), doubt(p), p.instance_labels > 0
    wrong = (mean > 0) != lesion
    found, false = int((mean[lesion] > 0).sum()), int((mean[~lesion] > 0).sum())
    where = (
        f"The evidence is above 0 for {found} of {lesion.sum()} lesion patches and for {false} of "
        f"{(~lesion).sum()} others"
    )
    if not wrong.any() or wrong.all():
        which = "right" if not wrong.any() else "wrong"
        sure = f"; every call is {which}, with a mean P(wrong) of {unsure.mean():.2f}"
    else:
        sure = (
            f"; the mean P(wrong) is {unsure[wrong].mean():.2f} where the call is wrong and "
            f"{unsure[~wrong].mean():.2f} where it is right"
        )
    deviation = np.sqrt(instance_variances(p))
    copies = [f"{_rank_correlation(v, mean):+.2f}".replace("-", "−") for v in (deviation, unsure)]
    return (
        f"{where}{sure}; the rank correlation with the evidence is {copies[0]} for s and "
        f"{copies[1]} for P(wrong), where +1 or −1 would be a copy."
    )


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(spearmanr(a, b)[0])  # type: ignore[arg-type]


def page_html(
    cells: Mapping[tuple[str, str, str], str],
    figures: Sequence[DemoFigure],
    *,
    folder: Path,
    bags: int,
    default: DefaultRun,
) -> str:
    """Return the HTML page; it links to the pictures by paths relative to its folder.

    Args:
        cells: text of each metric by model, kind and key.
        figures: the pictures.
        folder: the folder of the page.
        bags: number of test slides.
        default: the run by the default recipe.
    """
    columns = "".join(f"<th>{html.escape(m)}</th>" for m in COLUMNS.values())
    rows = "\n".join(
        f"<tr><td>{html.escape(title)}<br><small>{html.escape(why)}</small></td>"
        + "".join(f"<td>{html.escape(cells[m, kind, key])}</td>" for m in COLUMNS)
        + "</tr>"
        for kind, key, title, why in ROWS
    )
    pictures = "\n".join(
        f"<h3>{html.escape(f.bag)}</h3>\n"
        f'<figure><img src="{f.path.relative_to(folder).as_posix()}" '
        f'alt="Maps of {html.escape(f.bag)} by three models">'
        f"<figcaption>{html.escape(f.sentence)}</figcaption></figure>"
        for f in figures
    )
    return PAGE.format(
        lesion=LESION_DIGIT,
        alike=", ".join(map(str, LOOKALIKE_DIGITS)),
        bags=bags,
        columns=columns,
        rows=rows,
        figures=pictures,
        shown=len(figures),
        default=html.escape(default.sentence()),
        doubt=html.escape(cells["default", "instances", "error_auroc_doubt"]),
        margin=html.escape(cells["default", "instances", "error_auroc_margin"]),
    )


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
th, td {{ border-bottom: 1px solid #ccc; padding: .3rem .8rem; text-align: left;
  vertical-align: top; }}
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
a negative slide contains none. Both contain regions of similar digits ({alike}). Three models were
trained with one label per slide, without knowing which patches belong to lesions: <b>ABMIL</b>, the
paper's <b>ProbSA</b> (<code>abmil-probsa-diag</code>), and the <b>default recipe</b> of
<code>probsa train</code>. {default} ABMIL and ProbSA have smaller networks and a larger learning
rate, which suit slides of this size; the three runs differ in more than their method.</p>
<h2>Where the models look, and how much doubt there is</h2>
<p>These are the first {shown} positive test slides, not the best ones. Every square is a patch;
grey is glass without tissue. The first row shows the true lesions, which no model was given, and
the attention of ABMIL and ProbSA: yellow patches have the most weight in the prediction. The second
row shows the default recipe: its <b>evidence</b> m (red speaks for a lesion, blue against it,
white is 0), the probability that the evidence is positive, and the patches that a threshold at 0
calls wrongly. The third row shows its <b>doubt</b>: the standard deviation s of the evidence,
within the members and between them; P(wrong), the probability of being on the wrong side of 0,
which is large where m is small compared with s; and s against m, with blue dots for normal patches
and orange ones for lesions. If s were a copy of m, these dots would lie on one curve. Colours of
attention, m and s have a scale of their own in each slide; P(f &gt; 0) and P(wrong) have the same
scale everywhere.</p>
{figures}
<h2>How well the models perform</h2>
<table>
<tr><th>{bags} test slides</th>{columns}</tr>
{rows}
</table>
<p>Values with 95 % intervals over slides. An AUROC of 0.5 is chance, 1 is perfect. <b>Nearness to
the centre</b> is a map that knows nothing but the outline of the tissue: a map must beat it to show
anything. P(wrong) adds something to the mean only if it finds wrong patches better than the mean
alone: for the default recipe, the AUROC is here {doubt} by P(wrong) and {margin} by the mean alone.
P(wrong) is what the model believes; where it is near 0 for a patch that is called wrongly, the
model is too sure. This is a single run of each model on one set of slides: a difference smaller
than the intervals means nothing, and another <code>seed</code> may reverse it.</p>
<h2>The same on your own data</h2>
<p>All you need is a folder with one HDF5 file of features per slide or scan (files of TRIDENT and
CLAM are read as they are) and a table <code>bag,label</code>. Without <code>--model</code>, the
first command uses the default recipe:</p>
<pre>probsa train --features FEATURES --labels labels.csv --out runs/a
probsa predict runs/a --features FEATURES --out preds
probsa evaluate preds --labels labels.csv
probsa map preds --out maps</pre>
<p>The slides of this demo are such a data set: <code>data/features</code> and
<code>data/labels.csv</code> next to this page.</p>
</body>
</html>
"""
