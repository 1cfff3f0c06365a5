"""Train every model on the tests of the MIL assumption, and note which ones pass.

The tests are those of Raff and Holt (NeurIPS 2023), made by `datasets.assumptions`. The result of a
test with a seed is one row; rows that a table already has are not computed again.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from scipy.stats import norm

from ..core import TextTable, write_csv
from ..datasets import ASSUMPTION_TESTS, AssumptionTest, write_assumption_bags
from ..errors import InputError, ProbSAError, TableError, UnknownName
from ..evaluation import load
from ..models import arguments, names
from ..statistics import delong
from ..training import (
    DataConfig,
    RunConfig,
    TrainingConfig,
    open_data,
    train,
    train_jointly,
    why_not_jointly,
)

CRITERION = (
    "A model passes a test if its AUROC on reversed test bags is above 0.5 with the lower limit of "
    "its 95 % interval (DeLong), and its AUROC on test bags like those of training is above 0.5."
)
TRAINING = TrainingConfig(
    epochs=10,
    batch_size=16,
    learning_rate=5e-4,
    warmup_epochs=0,
    kl_weight=0.1,
    device="cpu",
    threads=1,
    tensorboard=False,
)
"""The same for all models."""
ARGUMENTS = {"predict_samples": 100}
"""Arguments of the models that have them; the others are their defaults."""
TABLE = "assumptions.csv"


@dataclass(frozen=True, kw_only=True, slots=True)
class AssumptionResult:
    """The result of one model on one test with one seed."""

    test: AssumptionTest
    model: str
    seed: int
    like: float | None
    """AUROC on test bags that are made as those of training."""
    reversed: float | None
    """AUROC on test bags where the shortcut is wrong."""
    reversed_low: float | None
    """Lower limit of its 95 % interval."""
    reason: str = ""
    """Why the model could not be trained; such a row is computed again."""

    @property
    def passed(self) -> bool:
        """Whether the model passes by `CRITERION`."""
        if self.like is None or self.reversed_low is None:
            return False
        return self.reversed_low > 0.5 and self.like > 0.5


def run_assumptions(
    out: Path,
    *,
    models: Sequence[str] | None = None,
    seeds: int = 1,
    training: TrainingConfig = TRAINING,
    told: Callable[[str], None] | None = None,
    **sizes: int,
) -> list[AssumptionResult]:
    """Train models on every test, and write their results to `assumptions.csv` in a folder.

    Args:
        out: the folder; rows that its table has are kept and not computed again.
        models: names of models; None for all.
        seeds: number of seeds, counted from 0.
        training: how the models are trained.
        told: called with a line about each step.
        **sizes: numbers of bags and features, as in `datasets.assumptions.assumption_bags`.

    Returns:
        The rows of the table, also those of other models.

    Raises:
        UnknownName: a model is not registered.
        InputError: there are no seeds, or the numbers of bags are too small.
        TableError: the table in the folder has other columns.
    """
    wanted = names() if models is None else list(dict.fromkeys(models))
    for name in wanted:
        if name not in names():
            raise UnknownName("model", name, names())
    if seeds < 1:
        raise InputError(f"{seeds} seeds: expected 1 or more")
    path = Path(out) / TABLE
    results = {_key(r): r for r in read_results(path)} if path.is_file() else {}
    work = Path(out) / "assumptions-work"
    for test in ASSUMPTION_TESTS:
        for seed in range(seeds):
            stored = {name: results.get((test, name, seed)) for name in wanted}
            missing = [name for name, r in stored.items() if r is None or r.reason]
            if not missing:
                continue
            write_assumption_bags(work / "data", test, seed=seed, **sizes)
            for result in _of_test(work, test, missing, seed=seed, training=training, told=told):
                results[_key(result)] = result
                write_results(path, results.values())
            shutil.rmtree(work)
    return _sorted(results.values())


def read_results(path: Path) -> list[AssumptionResult]:
    """Read a table of results.

    Raises:
        TableError: it lacks a column, or a cell cannot be used.
    """
    columns = [f.name for f in fields(AssumptionResult)]
    results = []
    for row in TextTable.read(path).rows:
        missing = [c for c in columns if c not in row]
        if missing:
            raise TableError(f"{path} has no column {missing[0]!r}: it has {', '.join(row)}")
        try:
            numbers = {
                c: float(row[c]) if row[c] else None for c in ("like", "reversed", "reversed_low")
            }
            seed = int(row["seed"])
        except ValueError as error:
            raise TableError(f"{path}, model {row['model']!r}: {error}") from error
        if row["test"] not in ASSUMPTION_TESTS:
            raise TableError(f"{path} has the unknown test {row['test']!r}")
        results.append(
            AssumptionResult(
                test=row["test"], model=row["model"], seed=seed, reason=row["reason"], **numbers
            )
        )
    return results


def write_results(path: Path, results: Iterable[AssumptionResult]) -> None:
    """Write a table of results, in the order of tests, models and seeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = [f.name for f in fields(AssumptionResult)]
    write_csv(path, [*header, "passed"], [
        {**{k: _cell(v) for k, v in asdict(r).items()}, "passed": str(r.passed).lower()}
        for r in _sorted(results)
    ])  # fmt: skip


def assumptions_page(results: Sequence[AssumptionResult]) -> str:
    """Return a table with a row for each model, and the criterion below it."""
    lines = [
        "| model | " + " | ".join(f"{test}: like training | reversed | passed"
                                  for test in ASSUMPTION_TESTS) + " |",
        "|---" * (1 + 3 * len(ASSUMPTION_TESTS)) + "|",
    ]  # fmt: skip
    for model in dict.fromkeys(r.model for r in sorted(results, key=lambda r: r.model)):
        cells = [f"`{model}`"]
        for test in ASSUMPTION_TESTS:
            of_test = [r for r in results if (r.model, r.test) == (model, test)]
            usable = [r for r in of_test if r.like is not None and r.reversed is not None]
            if not usable:
                cells += ["-", "-", of_test[0].reason if of_test else "not run"]
                continue
            cells += [f"{np.mean([r.like for r in usable]):.3f}"]  # pyright: ignore
            cells += [f"{np.mean([r.reversed for r in usable]):.3f}"]  # pyright: ignore
            passed = sum(r.passed for r in of_test)
            one = {0: "no", 1: "yes"}[passed] if len(of_test) == 1 else None
            cells.append(one or f"{passed} of {len(of_test)}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", CRITERION])


def _of_test(
    work: Path,
    test: AssumptionTest,
    models: Sequence[str],
    *,
    seed: int,
    training: TrainingConfig,
    told: Callable[[str], None] | None,
) -> Iterator[AssumptionResult]:
    """Train models on the bags in a folder; those that can, jointly."""
    data = DataConfig(features=work / "data" / "features", labels=work / "data" / "labels.csv")
    configs = {
        m: RunConfig(
            data=data,
            model=m,
            model_arguments={k: v for k, v in ARGUMENTS.items() if k in arguments(m)},
            training=training,
            seed=seed,
            data_seed=seed,
        )
        for m in models
    }
    joint = [m for m, c in configs.items() if why_not_jointly(c) is None]
    alone = [[m] for m in models if m not in joint]
    for group in [*([joint] if joint else []), *alone]:
        if told is not None:
            told(f"{test}, seed {seed}: {', '.join(group)}")
        reason = ""
        try:
            if len(group) > 1:
                outs = [work / m for m in group]
                train_jointly([configs[m] for m in group], outs, state=work / "state")
            else:
                train(configs[group[0]], work / group[0], overwrite=True)
        except ProbSAError as error:
            reason = str(error).partition("\n")[0]
        for m in group:
            yield _tested(work / m, configs[m], test=test, reason=reason)


def _tested(
    folder: Path, config: RunConfig, *, test: AssumptionTest, reason: str
) -> AssumptionResult:
    """Return the result of a trained run, or the reason why there is none."""
    values: dict[str, float | None] = dict.fromkeys(("like", "reversed", "reversed_low"))
    if not reason:
        try:
            values = _aurocs(folder, config)
        except ProbSAError as error:
            reason = str(error).partition("\n")[0]
    return AssumptionResult(
        test=test, model=config.model, seed=config.seed, reason=reason, **values
    )


def _aurocs(folder: Path, config: RunConfig) -> dict[str, float | None]:
    predictor, bags = load(folder, device="cpu"), open_data(config.data)
    predictor.model.explains = False
    values: dict[str, float | None] = {}
    for part in ("like", "reversed"):
        own = [name for name in bags.names if name.startswith(part)]
        with torch.random.fork_rng(devices=[]):
            p = np.array([q.probability[-1] for q in predictor.predict(map(bags.bag, own))])
        # bag k of a part is positive if k is odd
        areas = delong([int(name.rpartition("_")[2]) % 2 for name in own], p)
        values[part] = float(areas.auc[0])
        if part == "reversed":
            values["reversed_low"] = float(areas.auc[0] - norm.ppf(0.975) * areas.se[0])
    return values


def _key(result: AssumptionResult) -> tuple[str, str, int]:
    return result.test, result.model, result.seed


def _sorted(results: Iterable[AssumptionResult]) -> list[AssumptionResult]:
    return sorted(results, key=lambda r: (ASSUMPTION_TESTS.index(r.test), r.model, r.seed))


def _cell(value: object) -> object:
    return f"{value:.4f}" if isinstance(value, float) else value
