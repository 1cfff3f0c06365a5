"""The figures of a report: few lines that look different, and words that can be read."""

import itertools

import numpy as np
import pytest

from probsa.evaluation import Line, Panel
from probsa.evaluation.words import BAG_DETECTORS, INSTANCE_DETECTORS, NULL_DETECTORS
from probsa.maps.report_figures import draw_panels, line_looks

X = np.linspace(0, 100, 20).tolist()


def panel(names, *, title="17 bags") -> Panel:
    """Return a panel with a line for each name, of which the first has an interval."""
    lines = []
    for k, (name, label) in enumerate(names.items()):
        y = (np.linspace(5, 40, 20) + k).tolist()
        style = "main" if k == 0 else "null" if name in NULL_DETECTORS else "plain"
        limits = {"low": [v / 2 for v in y], "high": [2 * v for v in y]} if k == 0 else {}
        lines.append(Line(name, X, y, label=label, style=style, **limits))
    return Panel(
        title=title,
        x="calls kept (%)",
        y="wrong (%)",
        lines=lines,
        xlim=(0.0, 100.0),
        level=(35.0, "random order (null)"),
    )


MEMBERS = {"a": "member 1", "b": "member 2", "c": "member 3"}


@pytest.mark.parametrize("names", [BAG_DETECTORS, INSTANCE_DETECTORS, MEMBERS])
def test_lines_with_a_label_differ_in_colour_and_in_marker(names):
    looks = line_looks(panel(names))
    for one, other in itertools.combinations(looks, 2):
        assert one[0] != other[0] and one[1] != other[1]


def test_a_detector_has_one_colour_in_all_panels():
    bags, instances = (
        dict(zip(names, line_looks(panel(names)), strict=True))
        for names in (BAG_DETECTORS, INSTANCE_DETECTORS)
    )
    for name in ("doubt", "flip", "ood", "margin"):
        assert bags[name][0] == instances[name][0]


@pytest.mark.parametrize("count", [1, 3, 8])
def test_the_words_of_a_figure_can_be_read_and_have_their_place(count):
    names = dict(itertools.islice(BAG_DETECTORS.items(), count))
    figure = draw_panels([panel(names), panel(MEMBERS, title="234 instances")])
    figure.canvas.draw()
    boxes = []
    for ax in figure.axes:
        legend = ax.get_legend()
        texts = [*legend.get_texts(), ax.title, ax.xaxis.label, *ax.get_xticklabels()]
        assert min(text.get_fontsize() for text in texts) >= 7
        boxes += [ax.get_window_extent(), legend.get_window_extent()]
    for box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0
        assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
