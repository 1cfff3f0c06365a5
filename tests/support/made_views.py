"""Predictions, slides and a scan for the page of `probsa view`, and a browser that shows it."""

import io
import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.made_maps import prediction

from probsa.evaluation import write_predictions

SIDE = 64
SIZE = (1024, 768)
BLACK = (7, 4)
"""(column, row) of the patch that is black on the slide and has the largest mean."""
ODD_NAME = "<img src=x onerror=\"document.title=1\"> ä & '..'"


def cells() -> np.ndarray:
    """Return (column, row) of the patches of the slide `lesion`: a rectangle with a hole."""
    every = [(x, y) for y in range(2, 10) for x in range(3, 14) if (x, y) != (5, 5)]
    return np.array(every)


def lesion(name="lesion", **more):
    """Return an evidence prediction; its patch at `BLACK` has the largest mean and P."""
    grid = cells()
    n = len(grid)
    rng = np.random.default_rng(0)
    mean = rng.normal(-1.0, 0.3, n)
    mean[(grid == BLACK).all(1)] = 4.0
    labels = np.where((grid == BLACK).all(1), 1, 0).astype(np.int8)
    labels[0] = -1
    fields = {
        "score_kind": "evidence",
        "stride": float(SIDE),
        "instance_probability": (1 / (1 + np.exp(-2 * mean))).astype(np.float32),
        "contribution": (mean / n).astype(np.float32),
        "instance_labels": labels,
    }
    return prediction(
        (grid * SIDE).astype(np.int64), mean, rng.uniform(0.1, 0.9, n), name=name, **(fields | more)
    )


def tissue() -> np.ndarray:
    """Return a pink slide on white glass, with one black patch."""
    image = np.full((SIZE[1], SIZE[0], 3), 244, np.uint8)
    image[2 * SIDE : 10 * SIDE, 3 * SIDE : 14 * SIDE] = (205, 130, 175)
    x, y = BLACK
    image[y * SIDE : (y + 1) * SIDE, x * SIDE : (x + 1) * SIDE] = 0
    return image


def write_slides(folder: Path) -> Path:
    """Write the slide `lesion`, and the slide with the odd name."""
    folder.mkdir(parents=True)
    Image.fromarray(tissue()).save(folder / "lesion.png")
    return folder


def bags(**more):
    """Return five bags with different probabilities and spreads."""
    p = lesion()
    wide = {"std": np.array([0.21], np.float32), "probability": np.array([0.52], np.float32)}
    sure = {"std": np.array([0.01], np.float32), "probability": np.array([0.08], np.float32)}
    row = np.arange(6)
    return [
        p,
        replace(p, name=ODD_NAME, **wide),
        replace(p, name="sure", **sure),
        prediction(None, row / 3 - 1.0, row / 9 + 0.1, name="loose", stride=None),
        prediction(
            row[:, None] * 5.0,
            row / 5,
            row * 0.0,
            name="dirac",
            kind="ct",
            stride=None,
        ),
    ]


def write_bags(folder: Path, made=None) -> Path:
    """Write the bags; `lesion` is called rightly, `sure` wrongly, `dirac` was trained on."""
    write_predictions(
        folder,
        bags() if made is None else made,
        labels={"lesion": 1, "sure": 1, "dirac": 1},
        parts={"dirac": "train", "lesion": "test"},
        classes=["benign", "tumour"],
        threshold=0.5,
        metadata={"model": "evidence-field"},
    )
    (folder / "failed.csv").write_text("bag,reason\nempty,no tissue in /secret/place/empty.svs\n")
    return folder


@contextmanager
def chromium():
    """Yield a browser; skip with the reason where there is none."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no chromium on this machine")
    with sync_playwright() as p:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = p.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


class Shown:
    """A page that is open, with everything that went wrong on it.

    Attributes:
        faults: Errors of the console, exceptions, failed requests and bad answers.
        asked: Addresses that were requested.
    """

    def __init__(self, browser, address: str, *, scale: float = 1, size=(1300, 800), place=""):
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, device_scale_factor=scale
        )
        self.page = self.context.new_page()
        self.scale = scale
        self.faults: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.faults.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.faults.append(str(e)))
        self.page.on("requestfailed", lambda r: self.faults.append(f"failed: {r.url}"))
        self.page.on("response", lambda r: r.status < 400 or self.faults.append(r.url))
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.page.goto(address + place)
        self.wait()

    def wait(self) -> None:
        """Wait until a bag is shown, with all its tiles."""
        self.page.wait_for_selector("html[data-ready]", timeout=20_000)
        self.page.wait_for_function(
            "document.getElementById('osd').hidden || probsa.viewer.isReady()", timeout=20_000
        )
        self.settle()

    def settle(self) -> None:
        """Wait for two frames."""
        self.page.evaluate(
            "() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))"
        )

    def choose(self, name: str) -> None:
        """Show a bag, with the focus on nothing."""
        self.page.evaluate("document.activeElement.blur()")
        self.page.evaluate(
            "name => probsa.choose(probsa.state.rows.findIndex(r => r.name === name))", name
        )
        self.wait()

    def press(self, *keys: str) -> None:
        """Press keys one after another."""
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return self.page.inner_text(selector)

    def js(self, expression: str):
        """Return the value of an expression."""
        return self.page.evaluate(expression)

    def pixels(self, selector: str = "#view") -> np.ndarray:
        """Return the pixels of an element as RGB."""
        png = self.page.locator(selector).screenshot()
        return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)

    def close(self) -> None:
        """Close the page."""
        self.context.close()
