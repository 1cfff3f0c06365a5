"""The shortest form of each command on real scans: train, predict, evaluate and map."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from probsa.cli import main
from probsa.evaluation.storage import read_instances


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bags"),
    [("ct_ich", 82), pytest.param("colon_tiles", 100, marks=pytest.mark.nightly)],
)
def test_real_bags_from_features_to_maps(shared_data, tmp_path, capsys, name, bags):
    folder = shared_data / "bags" / name
    features = str(folder / "features")
    labels = str(folder / "labels.csv")
    run = tmp_path / "run"
    preds = tmp_path / "preds"
    maps = tmp_path / "maps"
    flags = (
        f"--features {features} --labels {labels} --model abmil-probsa-diag --test-fold 0 "
        "--standardize --batch-size 4 --learning-rate 3e-4 --epochs 2 --device cpu "
        f"--tensorboard false --maps none --out {run} --json"
    )
    assert main(["train", *flags.split()]) == 0
    assert not json.loads(capsys.readouterr().out)["failed"]
    given = ["predict", str(run), "--features", features, "--out", str(preds), "--json"]
    assert main(given) == 0
    assert json.loads(capsys.readouterr().out)["bags"] == bags
    assert main(["evaluate", str(preds), "--labels", labels, "--bootstrap", "50", "--json"]) == 0
    json.loads(capsys.readouterr().out)
    with (preds / "predictions.csv").open() as f:
        row = next(r for r in csv.DictReader(f) if r["part"] == "test" and r["label"] != "0")
    assert main(["map", str(preds), "--bag", row["bag"], "--out", str(maps)]) == 0
    picture = np.asarray(Image.open(maps / f"{row['bag']}.png").convert("RGB"))
    assert picture.shape[1] > 600 and len(np.unique(picture.reshape(-1, 3), axis=0)) > 50
    kept = read_instances(preds / "instances" / f"{row['bag']}.h5")
    assert (kept.attention_variance > 0).all() and (kept.weight_variance >= 0).all()
    assert kept.weight_mean.sum() == pytest.approx(1, abs=1e-4)
    assert kept.instance_labels is not None
