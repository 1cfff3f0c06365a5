"""Command lines that are refused, and a folder with the good and bad inputs that they name."""

import contextlib
from pathlib import Path

from support.made_slides import write_cohort
from support.stored import write_folder

from probsa.cli import main

DATA = "--features data/features --labels data/labels.csv"
SMALL = "--model abmil --embed 8 --test-fold 0 --epochs 1 --device cpu --tensorboard false"
FILES = {
    "text.txt": "no table",
    "other.csv": "name,value\na,1\n",
    "strangers.csv": "bag,label\nx,0\ny,1\n",
    "cell.csv": "bag,label\n000,0\n001,tumour\n",
    "class.csv": "bag,label\n000,0\n001,7\n",
    "twice.csv": "bag,label\n000,0\n000,1\n",
    "no_label.csv": "bag,lable\n000,0\n001,1\n",
    "sites.csv": "bag,label,site\na,0,x\nb,1,x\nc,0,y\nd,1,y\ne,0,z\nf,1,\n",
    "single.csv": "bag,label,site\na,0,x\nb,0,x\nc,0,y\nd,1,y\ne,0,z\nf,1,y\n",
    "few.csv": "bag,label,group\na,0,x\nb,1,x\nc,0,y\nd,1,y\n",
    "bad.yaml": "features: [\n",
    "key.yaml": "features: data/features\nlabels: data/labels.csv\nepoch: 3\n",
    "model.yaml": "features: data/features\nlabels: data/labels.csv\nmodel: abmill\n",
    "grid.yaml": "models: [abmill]\ndata: {features: data/features, labels: data/labels.csv}\n",
    "argument.yaml": "models: [{name: abmil, hedas: 3}]\n"
    "data: {features: data/features, labels: data/labels.csv}\n",
    "lost.yaml": "models: [abmil]\ndata: {features: gone, labels: data/labels.csv}\n",
    "no_table/predictions.csv": "bag,part\n000,test\n",
}
"""Tables, run files and grids, each with a fault of its own."""


def write_place(folder: Path) -> None:
    """Write good and bad inputs of every kind to a folder."""
    write_folder(folder / "data")
    write_cohort(folder / "slides", slides=1)
    with contextlib.chdir(folder):
        assert main(f"train {DATA} --out run {SMALL} --maps none".split()) == 0
        assert main(["patch", "slides", "--out", "work"]) == 0
    for name in ("empty", "no_table", "no_weights"):
        (folder / name).mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "broken.csv").write_bytes(b"bag,label\n\xff\xfe\x00\x01,1\n")
    (folder / "no_weights" / "run.yaml").write_text((folder / "run" / "run.yaml").read_text())


TRAIN = f"train {DATA} --out new"
PREDICT = "predict run --features data/features --out new"
GOOD = "run/predictions"
CASES = {
    "train": [
        "train --features gone --labels data/labels.csv --out new",
        "train --features empty --labels data/labels.csv --out new",
        "train --features text.txt --labels data/labels.csv --out new",
        "train --features data/features --labels gone.csv --out new",
        "train --features data/features --labels empty --out new",
        "train --features data/features --labels broken.csv --out new",
        "train --features data/features --labels other.csv --out new",
        "train --features data/features --labels no_label.csv --out new",
        "train --features data/features --labels strangers.csv --out new",
        "train --features data/features --labels class.csv --classes a,b --out new",
        "train --features data/features --labels twice.csv --out new",
        "train --features data/features --out new",
        "train --features data/features --labels data/labels.csv",
        "train --features data/features --labels data/labels.csv --out run",
        "train --features data/features --labels data/labels.csv --out data",
        "train --out empty --resume",
        "train --out gone --resume",
        "train --out data --resume",
        "train --config gone.yaml --out new",
        "train --config nonsense --out new",
        "train --config bad.yaml --out new",
        "train --config key.yaml --out new",
        "train --config model.yaml --out new",
        f"{TRAIN} --model abmill",
        f"{TRAIN} --epoch 3",
        f"{TRAIN} --epochs many",
        f"{TRAIN} --epochs -1",
        f"{TRAIN} --model abmil --hedas 3",
        f"{TRAIN} --model abmil --training.epoch 3",
        f"{TRAIN} --model abmil --samples 3",
        f"{TRAIN} --maps some",
        f"{TRAIN} --task binray",
        f"{TRAIN} --split gone.csv",
        f"{TRAIN} --instance-labels gone",
        f"{TRAIN} --covariates gone.csv --numeric age",
        f"{TRAIN} --covariates other.csv --numeric age",
        f"{TRAIN} --target lable",
        f"{TRAIN} --feature-set none",
    ],
    "folds": [
        "folds gone.csv --out new.csv",
        "folds empty --out new.csv",
        "folds broken.csv --out new.csv",
        "folds other.csv --out new.csv",
        "folds no_label.csv --out new.csv",
        "folds twice.csv --out new.csv",
        "folds data/labels.csv --out new.csv",
        "folds few.csv",
        "folds few.csv --out new.csv",
        "folds few.csv --out new.csv --folds 2",
        "folds few.csv --out new.csv --folds many",
        "folds few.csv --out new.csv --test-share 2",
        "folds few.csv --out new.csv --sites near",
        "folds few.csv --out new.csv --sites apart",
        "folds sites.csv --out new.csv --site sties",
        "folds sites.csv --out new.csv --folds 3 --sites apart",
        "folds single.csv --out new.csv --folds 3 --sites apart",
        "folds sites.csv --out sites.csv --folds 3",
        "folds sites.csv --out few.csv --folds 3",
    ],
    "predict": [
        "predict gone --features data/features --out new",
        "predict empty --features data/features --out new",
        "predict no_weights --features data/features --out new",
        "predict run/predictions --features data/features --out new",
        "predict run --features gone --out new",
        "predict run --features empty --out new",
        "predict run --features slides --out new",
        "predict run --features data/features --out run/predictions",
        "predict run --features data/features --out data --overwrite",
        f"{PREDICT} --labels gone.csv",
        f"{PREDICT} --labels broken.csv",
        f"{PREDICT} --labels other.csv",
        f"{PREDICT} --labels cell.csv",
        f"{PREDICT} --labels class.csv",
        f"{PREDICT} --labels twice.csv",
        f"{PREDICT} --covariates gone.csv",
        f"{PREDICT} --checkpoint worst",
        f"{PREDICT} --device gpu",
        f"{PREDICT} --chekpoint best",
    ],
    "evaluate": [
        "evaluate gone",
        "evaluate empty",
        "evaluate text.txt",
        "evaluate no_table",
        f"evaluate {GOOD} --labels gone.csv",
        f"evaluate {GOOD} --labels broken.csv",
        f"evaluate {GOOD} --labels other.csv",
        f"evaluate {GOOD} --labels cell.csv",
        f"evaluate {GOOD} --labels class.csv",
        f"evaluate {GOOD} --labels twice.csv",
        "evaluate run --labels cell.csv",
        f"evaluate {GOOD} --labels data/labels.csv --classes a,b,c",
        f"evaluate {GOOD} --part tset",
        f"evaluate {GOOD} --bootstrap 3",
        f"evaluate {GOOD} --coverage 2",
        f"evaluate {GOOD} --coverage 0.9 --calibration gone",
        f"evaluate {GOOD} --calibration gone",
    ],
    "sets": [
        "sets gone --out new.csv --coverage 0.9",
        "sets empty --out new.csv --coverage 0.9",
        f"sets {GOOD} --out new.csv",
        f"sets {GOOD} --out data/labels.csv --coverage 0.9",
        f"sets {GOOD} --out new.csv --coverage 0.9 --labels gone.csv",
        f"sets {GOOD} --out new.csv --coverage 0.9 --labels cell.csv",
        f"sets {GOOD} --out new.csv --coverage 0.9 --labels class.csv",
        f"sets {GOOD} --out new.csv --coverage 0.9 --calibration gone",
    ],
    "map": [
        "map gone --out new",
        "map empty --out new",
        "map no_table --out new",
        f"map {GOOD} --out new --bag nobody",
        f"map {GOOD} --out new --slides gone",
        f"map {GOOD} --out new --slides slides --slide-mpp gone.csv",
        f"map {GOOD} --out new --anndata --features gone",
        f"map {GOOD} --out new --anndata --features empty",
        f"map {GOOD} --out new --score doubt",
        f"map {GOOD} --out new --no-png",
        f"map {GOOD} --out text.txt",
    ],
    "view": [
        "view gone --export new",
        "view empty --export new",
        "view data --export new",
        f"view {GOOD} --export new --slides gone",
        f"view {GOOD} --export new --against gone",
        f"view {GOOD} --export new --against empty",
        f"view {GOOD} --export data",
        f"view {GOOD} --port many",
    ],
    "benchmark": [
        "benchmark gone.yaml",
        "benchmark nonsense",
        "benchmark bad.yaml",
        "benchmark grid.yaml",
        "benchmark argument.yaml",
        "benchmark lost.yaml",
        "benchmark standins --data gone",
        "benchmark standins --data data --modles abmil",
        "benchmark standins --data data --models abmill",
        "benchmark standins --data data --epoch 3",
        "benchmark --tables-only --out empty",
        "benchmark",
    ],
    "run": [
        "run gone --model run --out new",
        "run empty --model run --out new",
        "run slides --model gone --out new",
        "run slides --model empty --out new",
        "run slides --model run --out new --encoder resnet5",
        "run slides --model run --out new --labels gone.csv",
        "run slides --model run --out new --labels cell.csv",
        "run slides --model run --out new --slide-mpp gone.csv",
    ],
    "patch": [
        "patch gone --out new",
        "patch empty --out new",
        "patch data --out new",
        "patch slides --out new --preset nonsense",
        "patch slides --out new --contours gone",
        "patch slides --out new --slide-mpp gone.csv",
        "patch slides --out new --slide-mpp other.csv",
        "patch slides --out new --patch-size many",
    ],
    "extract": [
        "extract gone",
        "extract empty",
        "extract work --encoder resnet5",
        "extract work --set nonsense",
        "extract work --weights gone.pth",
        "extract work --slides gone",
        "extract work --slides empty",
        "extract work --windows brian",
    ],
    "convert": [
        "convert gone --from clam --out new",
        "convert empty --from clam --out new",
        "convert data/features --from clma --out new",
        "convert data/features --from trident --out new --labels gone.csv",
        "convert data/features --from trident --out new --labels other.csv",
        "convert data/features --from trident --out new --slide-mpp gone.csv",
        "convert data/features --from trident --out new --feature-set none",
    ],
    "dataset": [
        "dataset camelyon16 gone --out new",
        "dataset camelyno16 data --out new",
        "dataset table --out new",
        "dataset table data --out new --labels gone.csv",
        "dataset table data --out new --features gone --labels data/labels.csv",
        "dataset table data --out new --instance-labels gone --labels data/labels.csv",
        "dataset table data --out new --grades",
    ],
    "info": ["info gone", "info empty", "info text.txt", "info slides --slide-mpp gone.csv"],
    "models": ["models abmill", "models --markdwon"],
    "encoders": ["encoders resnet5"],
    "doctor": ["doctor now"],
    "demo": ["demo --out text.txt"],
    "other": ["trian", "verify work", "--nonsense"],
}
