"""The report says in words how far a learned prior smooths, from P_nn / Q_nn of validation bags."""

import io

import numpy as np
import pytest
import torch
from rich.console import Console
from support.stored import write_folder

from probsa import pack
from probsa.core import degrees
from probsa.evaluation import load
from probsa.evaluation.smoothness import smoothness_sentence
from probsa.training import open_data, read_split
from probsa.training.config import DataConfig, RunConfig, TrainingConfig
from probsa.workflow import train_and_report


@pytest.mark.parametrize(("classes", "members"), [(2, 2), (3, 1)])
def test_the_report_states_the_share_of_the_neighbours(tmp_path, classes, members):
    features, labels = write_folder(tmp_path / "data", bags=18)
    if classes == 3:
        rows = [row.split(",") for row in labels.read_text().splitlines()[1:]]
        lines = [f"{bag},{k % 3},{k // 3 % 3}" for k, (bag, _, _) in enumerate(rows)]
        labels.write_text("\n".join(["bag,label,fold", *lines]) + "\n")
    config = RunConfig(
        data=DataConfig(features=features, labels=labels, test_fold=0),
        model="evidence-field",
        model_arguments={"embed": 8, "attention_dim": 4, "samples": 2, "predict_samples": 3},
        training=TrainingConfig(
            epochs=2, batch_size=3, device="cpu", tensorboard=False, threads=1, members=members,
            learning_rate=1e-2, warmup_epochs=0,
        ),
    )  # fmt: skip
    trained = train_and_report(config, tmp_path / "run", maps="none")
    assert trained is not None
    bags = open_data(config.data)
    shares = []
    runs = trained.run.members() if members > 1 else [trained.run]
    for name in read_split(trained.run).val:
        for run in runs:
            model = load(run.path, device="cpu").model
            bag = pack([bags.bag(name)])
            with torch.no_grad():
                head = model.attention
                log_variance = head._bounded(head.log_variance(head.trunk(model.instances(bag))))
            tau = (-log_variance.double()).exp()
            own = 2 * head.prior.kappa * (degrees(bag.edges, bag.weights, len(bag.x)) + 0.01)
            shares.append(float((own[:, None] / (own[:, None] + tau)).mean()))
    assert trained.report.metadata["neighbour_share"] == pytest.approx(np.mean(shares), rel=1e-5)
    shown = io.StringIO()
    trained.report.render(Console(file=shown, width=200))
    sentence = smoothness_sentence(trained.report.metadata)
    assert f"a share of {np.mean(shares):.0%} and the instance itself" in sentence
    assert sentence in shown.getvalue()
