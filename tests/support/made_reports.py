"""Predictions of every task, from which a whole report can be made."""

from dataclasses import replace

import numpy as np
from support.made_predictions import made

from probsa.evaluation import write_predictions
from probsa.tasks import TASKS

GRADES = ("low", "mid", "high")
TIMES = ("s_2", "s_5", "s_9")
OUTPUTS = {
    "binary": (),
    "multiclass": (),
    "ordinal": GRADES,
    "multilabel": GRADES,
    "regression": ("mean", "sd", "q05", "q25", "q50", "q75", "q95"),
    "survival": ("risk", *TIMES),
}
CLASSES = {
    "binary": ("benign", "tumour"),
    "multiclass": GRADES,
    "ordinal": GRADES,
    "multilabel": GRADES,
    "regression": (),
    "survival": (),
}


def predicted_and_true(task, rng, *, first):
    """Return what is predicted of a bag and its target, related to each other.

    Args:
        task: the name of the task.
        rng: generator.
        first: whether it is the first bag: of a task with findings, one of them is then unknown.
    """
    truth = rng.normal()
    seen = truth + 0.7 * rng.normal()
    if task == "binary":
        return (1 / (1 + np.exp(-seen)),), int(truth > 0)
    if task in ("multiclass", "ordinal"):
        p = np.exp(-((seen - np.array([-1.0, 0.0, 1.0])) ** 2))
        return p / p.sum(), int(np.digitize(truth, [-0.5, 0.5]))
    if task == "multilabel":
        p = 1 / (1 + np.exp(-(seen + np.array([-0.5, 0.0, 0.5]))))
        y = (truth + np.array([-0.5, 0.0, 0.5]) > 0).astype(float)
        return p, (np.nan if first else y[0], *y[1:])
    if task == "regression":
        return (seen, 1.0, *(seen + np.array([-1.6, -0.7, 0.0, 0.7, 1.6]))), (truth,)
    hazard = np.exp(seen - 2)
    survival = np.exp(-hazard * np.array([2.0, 5.0, 9.0]))
    return (9 * (1 - survival[1]), *survival), (
        float(rng.exponential(1 / np.exp(truth - 2))),
        float(rng.random() < 0.8),
    )


def write_report_folder(folder, task, *, bags=48, seed=0, labels_of_instances=True, **metadata):
    """Write validation and test bags of a task; return the folder.

    Two of three bags share a patient, whose bags have the same target.
    """
    rng = np.random.default_rng(seed)
    predictions = []
    targets = {}
    parts = {}
    for k in range(bags):
        name = f"bag{k:02}"
        patient = f"p{k // 3}" if k % 3 < 2 else f"q{k}"
        values, target = predicted_and_true(task, rng, first=k == 0)
        if k % 3 == 1:
            target = targets[f"bag{k - 1:02}"]
        positive = rng.random(9) < 0.4
        p = made(
            name,
            rng.normal(size=9) + positive,
            positive.astype(int) if labels_of_instances else None,
            probability=values,
            attention_variance=rng.uniform(0.1, 1, 9),
            score_kind="evidence",
        )
        spread = np.full(len(values), 0.1, np.float32)
        predictions.append(
            replace(
                p,
                std=spread,
                task=task,
                outputs=TASKS[task].outputs_named(OUTPUTS[task]),
                group=patient,
            )
        )
        targets[name] = target
        parts[name] = "val" if k // 3 % 2 else "test"
    if task not in ("binary", "multiclass"):
        training = [list(np.atleast_1d(target).astype(float)) for target in targets.values()]
        metadata["training_targets"] = training
    write_predictions(
        folder,
        predictions,
        labels=targets,
        parts=parts,
        classes=CLASSES[task],
        threshold=0.4 if task == "binary" else None,
        metadata={"model": "abmil", **metadata},
    )
    return folder
