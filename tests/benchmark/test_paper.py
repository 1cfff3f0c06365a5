"""Tables 2 to 5 and figures 3 and 4 of the paper, as its recipes make them."""

import csv
import re
import runpy
import sys

import numpy as np
import pytest
import yaml
from scipy.stats import rankdata
from sklearn.metrics import f1_score, roc_auc_score
from support.made_experiments import write_run
from support.paths import ROOT
from support.stored import write_folder

from probsa.benchmark import ablation_table, comparison_table, read_results, write_tables
from probsa.benchmark.figures.improvement import MEAN, gains
from probsa.benchmark.figures.ranks import family_ranks
from probsa.cli import main
from probsa.core import TextTable

SETS = ("rsna", "panda", "camelyon16")
METHODS = (
    ("abmil", None),
    ("abmil-probsa-dirac", "cyclical"),
    ("abmil-probsa-diag", "cyclical"),
    ("abmil-probsa-diag", 0.1),
    ("dsmil", None),
)
SPLITS = (0, 1)
BAGS = [f"b{k:02d}" for k in range(30)]
Y = {bag: k % 2 for k, bag in enumerate(BAGS)}
THRESHOLD = 0.3


def predicted(data: str, method: int, split: int) -> dict[str, float]:
    """Return p of each test bag, which calls at 0.3 and at 0.5 differ about."""
    rng = np.random.default_rng([SETS.index(data), method, split])
    skill = 0.12 + 0.03 * rng.normal()
    p = [0.4 + skill * (2 * y - 1) + 0.2 * rng.normal() for y in Y.values()]
    return {bag: float(np.clip(v, 0.01, 0.99)) for bag, v in zip(BAGS, p, strict=True)}


def values(method: int) -> dict[tuple[str, str], np.ndarray]:
    """Return AUROC and both F1 of a method on each data set, by split, in percent."""
    y = list(Y.values())
    found = {}
    for data in SETS:
        p = [np.float32(list(predicted(data, method, split).values())) for split in SPLITS]
        found[data, "auroc"] = 100 * np.array([roc_auc_score(y, of_split) for of_split in p])
        for name, limit in (("f1", THRESHOLD), ("f1_at_0_5", 0.5)):
            scores = [f1_score(y, of_split >= limit) for of_split in p]
            found[data, name] = 100 * np.array(scores)
    return found


@pytest.fixture(scope="module")
def experiments(tmp_path_factory):
    """Return the folders of an experiment with F1 at 0.5, and of one without; written once."""
    folders = {}
    for at_half in (True, False):
        out = tmp_path_factory.mktemp("paper")
        for data in SETS:
            for k, (model, kl) in enumerate(METHODS):
                for split in SPLITS:
                    write_run(
                        out,
                        data=data,
                        model=model,
                        kl_weight=kl,
                        split=split,
                        folds=False,
                        y=Y,
                        test=predicted(data, k, split),
                        threshold=THRESHOLD,
                    )
        grid = {"models": ["abmil"], "f1_at_half": at_half}
        (out / "grid.yaml").write_text(yaml.safe_dump(grid))
        folders[at_half] = out
    return folders


@pytest.fixture(scope="module")
def results(experiments):
    return {at_half: read_results(out) for at_half, out in experiments.items()}


@pytest.fixture(scope="module")
def comparisons(results):
    return {at_half: comparison_table(read, "local") for at_half, read in results.items()}


@pytest.mark.parametrize(("at_half", "shown"), [(True, "f1_at_0_5"), (False, "f1")])
def test_ranks_are_over_the_six_columns_that_are_shown(comparisons, at_half, shown):
    table = comparisons[at_half]
    assert table is not None
    keys = [column.key for column in table.columns]
    columns = [(data, metric) for data in SETS for metric in ("auroc", shown)]
    assert set(keys) == {"method", "rank", *("_".join(c) for c in columns)}
    chosen = [0, 1, 2, 4]  # one λ represents a method
    means = np.array([[values(k)[c].mean() for c in columns] for k in chosen])
    ranks = rankdata(-means, axis=0)
    rows = {row[0].text: dict(zip(keys, row, strict=True)) for row in table.rows}
    for k, of_method, mean in zip(chosen, ranks, means, strict=True):
        model, kl = METHODS[k]
        row = rows[model if kl is None else f"{model} λ={kl}"]
        for column, value in zip(columns, mean, strict=True):
            cell = row["_".join(column)]
            assert 100 * cell.value == pytest.approx(value, abs=1e-9)
            sd = values(k)[column].std(ddof=1)
            assert 100 * cell.sd == pytest.approx(sd, abs=1e-9)
        assert row["rank"].value == pytest.approx(of_method.mean(), abs=1e-12)
        assert row["rank"].sd == pytest.approx(of_method.std(ddof=1), abs=1e-12)


@pytest.mark.parametrize("at_half", [True, False])
def test_both_f1_stand_in_the_tables_of_a_data_set(comparisons, at_half):
    table = comparisons[at_half]
    assert table is not None
    for pooled, data in zip(table.follow, sorted(SETS), strict=True):
        keys = [column.key for column in pooled.columns]
        groups = {column.group for column in pooled.columns}
        assert {"F1 at 0.5", "F1 at chosen threshold"} <= groups
        row = next(row for row in pooled.rows if row[0].text == "dsmil")
        for name in ("f1", "f1_at_0_5"):
            value = row[keys.index(name)].value
            assert value == pytest.approx(values(4)[data, name].mean() / 100, abs=1e-9)
    assert values(4)["rsna", "f1"].mean() != pytest.approx(values(4)["rsna", "f1_at_0_5"].mean())


def test_the_ablation_has_f1_at_half_too(results):
    table = ablation_table(results[True])
    assert table is not None
    keys = [column.key for column in table.columns]
    assert "rsna_f1_at_0_5" in keys and "rsna_f1" not in keys
    rows = {(row[0].text, row[1].text): row for row in table.rows}
    at = keys.index("camelyon16_f1_at_0_5")
    for k, kl in ((3, "0.1"), (2, "cyclical"), (0, "0.0")):
        value = rows["abmil-probsa-diag", kl][at].value
        assert 100 * value == pytest.approx(values(k)["camelyon16", "f1_at_0_5"].mean(), abs=1e-9)


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def script(monkeypatch, capsys):
    """Return a function that runs a script with arguments, and returns what it printed."""

    def run(name, *arguments):
        path = ROOT / "benchmarks" / f"{name}.py"
        monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        capsys.readouterr()
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_figures_3_and_4_show_the_columns_of_the_tables(results):
    scores = results[True].scores
    metrics = {"AUROC": "auroc", "F1 at 0.5": "f1_at_0_5"}
    chosen = [0, 1, 2, 4]
    names = [m if kl is None else f"{m} λ={kl}" for m, kl in (METHODS[k] for k in chosen)]
    ranks, missing, _ = family_ranks(scores)
    assert len(ranks) == 8 and missing == []
    for row in ranks:
        key = metrics[row.metric]
        means = np.array([[values(k)[d, key].mean() for d in SETS] for k in chosen])
        by_hand = rankdata(-means, axis=0).mean(1)
        assert row.rank == pytest.approx(by_hand[names.index(row.method)], abs=1e-12)
        assert row.data_sets == 3
    rows, missing, _ = gains(scores)
    cyclical = [g for g in rows if (g.variant, g.kl_weight) == ("abmil-probsa-diag", "cyclical")]
    points = {(g.data, g.metric): g.points for g in cyclical}
    assert missing == []
    for metric, key in metrics.items():
        by_hand = [values(2)[d, key].mean() - values(0)[d, key].mean() for d in SETS]
        assert [points[d, metric] for d in SETS] == pytest.approx(by_hand, abs=1e-9)
        assert points[MEAN, metric] == pytest.approx(np.mean(by_hand), abs=1e-9)


def test_our_numbers_stand_beside_the_papers(experiments, results, script):
    out = experiments[True]
    write_tables(results[True], out)
    text = script("paper", out)
    diag = next(line for line in text.splitlines() if line.startswith("| ABMIL+ProbSA Diag |"))
    cells = [cell.strip() for cell in diag.split("|")][3:-1]
    assert len(cells) == 7 and all("(ours " in cell for cell in cells)
    assert cells[1].startswith("83.2 ± 1.7 (ours ")
    assert f"(ours {values(2)['rsna', 'f1_at_0_5'].mean():.1f} " in cells[1]


def with_test_part(folder):
    """Write a small data set with a fixed test part, as those of the paper."""
    _, table = write_folder(folder, bags=18)
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    parts = ["test" if k < 6 else "train" for k in range(len(rows))]
    lines = [f"{bag},{label},{part}" for (bag, label, _), part in zip(rows, parts, strict=True)]
    table.write_text("\n".join(["bag,label,split", *lines]) + "\n")
    return folder


def test_table_4_is_timed_on_data_with_a_fixed_test_part(tmp_path, script):
    times = tmp_path / "times.csv"
    data = with_test_part(tmp_path / "bags")
    recipe = tmp_path / "comparison.yaml"
    text = (ROOT / "recipes" / recipe.name).read_text()
    recipe.write_text(re.sub(r"feature_set: \w+", "feature_set: null", text))
    flags = ("--models", "abmil,abmil-probsa-diag", "--rounds", 2, "--out", times)
    script("timing", recipe, "--data", f"rsna={data}", *flags)
    timed = {row["model"]: row for row in TextTable.read(times).rows}
    assert {"abmil", "abmil-probsa-diag"} == timed.keys()
    for row in timed.values():
        assert 0 < float(row["lower"]) <= float(row["milliseconds"]) <= float(row["upper"]) < 1e5
    written = sorted(p.name for p in tmp_path.iterdir())
    assert written == ["bags", "comparison.yaml", "times.csv"]
    text = script("paper", "--times", times, "--table", 4)
    ours = [line for line in text.splitlines() if "(ours " in line]
    assert [line.split("|")[1].strip() for line in ours] == ["ABMIL+ProbSA Diag", "ABMIL"]
    assert f"(ours {float(timed['abmil']['milliseconds']):.1f} [" in ours[1]


def test_one_command_makes_the_comparison_with_one_rank(tmp_path, capsys):
    """The recipe itself, on three small cohorts, with two of its methods and one epoch."""
    data = [f"--data={name}={with_test_part(tmp_path / name)}" for name in SETS]
    small = ["--epochs", "1", "--splits", "[0]", "--device", "cpu", "--threads", "1"]
    recipe = ROOT / "recipes" / "comparison.yaml"
    out = tmp_path / "out"
    given = [str(recipe), *data, "--out", str(out), "--feature_set", "null", "--bags", "000"]
    assert main(["benchmark", *given, "--models", "abmil,dsmil", *small]) == 0, capsys.readouterr()
    rows = rows_of(out / "tables" / "comparison_local.csv")
    columns = [f"{d}_{m}" for d in SETS for m in ("auroc", "f1_at_0_5")]
    assert len(rows) == 2 and set(columns) < set(rows[0])
    means = np.array([[float(row[c]) for c in columns] for row in rows])
    ranks = rankdata(-means, axis=0).mean(1)
    assert [float(row["rank"]) for row in rows] == pytest.approx(ranks.tolist(), abs=1e-6)
    assert (out / "figures" / "ranks.png").is_file()
