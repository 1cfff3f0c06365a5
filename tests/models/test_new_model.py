"""A new model is one file: an installed package that registers it is all that is needed."""

import importlib
import json
import sys

import pytest
from support.stored import write_folder

from probsa.benchmark.grid.entries import methods_of
from probsa.cli import main
from probsa.models import _registry, build, catalogue_page, look_up, names
from probsa.training import load_checkpoint, read_run, train

FILE = '''
"""MeanMIL: a linear classifier on the mean of the instances."""

import torch
from probsa.core import Bags, segment_mean
from probsa.models import Model, Output, Provenance, register
from probsa.variational import Dirac


@register("meanmil")
class MeanMIL(Model):
    """The mean of the instances, classified."""

    family = "global"
    provenance = Provenance(
        paper="Nobody", follows_paper="All.", follows_code="None.", fair="Nothing."
    )

    def __init__(self, *, in_dim: int, **common) -> None:
        super().__init__(**common)
        self.classifier = torch.nn.Linear(in_dim, self.n_classes)

    def forward(self, bags, *, noise=None, generator=None):
        logits = self.classifier(segment_mean(bags.x, bags.sizes))[:, None]
        attention = Dirac(torch.zeros(len(bags.x)))
        return Output(logits=logits, attention=attention, likelihood=self.likelihood)
'''


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a package with one model, found through its entry point; uninstall it afterwards."""
    metadata = tmp_path / "site" / "meanmil-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: meanmil\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[probsa.models]\nmeanmil = meanmil\n")
    (tmp_path / "site" / "meanmil.py").write_text(FILE)
    names()
    registered = dict(_registry._registrations)
    monkeypatch.syspath_prepend(tmp_path / "site")
    _registry._discover.cache_clear()
    yield
    sys.modules.pop("meanmil", None)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not p.endswith("site")])
    importlib.invalidate_caches()
    _registry._registrations.clear()
    _registry._registrations.update(registered)
    _registry._discover.cache_clear()


@pytest.mark.usefixtures("installed")
def test_a_model_of_another_package_is_listed_built_trained_and_part_of_its_family(
    capsys, tmp_path
):
    assert "meanmil" in names() and look_up("meanmil").family == "global"
    assert build("meanmil", in_dim=3).name == "meanmil"
    assert "## `meanmil`" in catalogue_page()
    assert main(["models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["meanmil"]["needs"] == "features only"
    assert main(["models", "meanmil"]) == 0
    assert "n_classes" in capsys.readouterr().out
    features, labels = write_folder(tmp_path / "data")
    run_file = tmp_path / "run.yaml"
    run_file.write_text(
        f"data: {{features: {features}, labels: {labels}, test_fold: 0}}\n"
        "model: {name: meanmil}\n"
        "training: {epochs: 1, device: cpu, tensorboard: false}\n"
    )
    run = train(read_run(run_file, {}), tmp_path / "run")
    assert run.config().model == "meanmil"
    assert set(load_checkpoint(run.last).part("model")) == {"classifier.weight", "classifier.bias"}
    families = {w: methods_of([w], [0.5], where="grid.yaml") for w in ("local", "global")}
    models = {w: {e.method.model for e in entries} for w, entries in families.items()}
    assert "meanmil" in models["global"] and "meanmil" not in models["local"]


def test_without_the_package_the_model_is_unknown():
    assert "meanmil" not in names()
