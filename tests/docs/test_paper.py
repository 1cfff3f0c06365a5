"""Numbers in docs/paper.md follow from the paper's tables and from the package."""

import csv
import re

import numpy as np
from scipy.stats import rankdata
from support.paths import ROOT

from probsa.benchmark.results.method_order import ORDER
from probsa.datasets import protocol_splits, read_table
from probsa.models import build
from probsa.training import TrainingConfig

PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
PRINTED = ROOT / "benchmarks" / "paper.csv"
SETS = ("RSNA", "PANDA", "CAMELYON16")
COLUMNS = [(data, metric) for data in SETS for metric in ("AUROC", "F1")]
KL = ("0.0", "0.1", "0.5", "1.0", "cyclical")
VARIANTS = [f"{base}+ProbSA {q}" for base in ("ABMIL", "T-ABMIL") for q in ("Dirac", "Diag")]
TABLES = {"2": "table2_no_global", "3": "table3_global", "5": "table5_ablation"}


def read_printed() -> dict[tuple[str, ...], tuple[float, float]]:
    """Return mean and s.d. by table, model, λ, data set and metric."""
    with PRINTED.open(newline="", encoding="utf-8") as file:
        return {
            tuple(row[k] for k in ("table", "model", "lambda", "dataset", "metric")): (
                float(row["mean"]),
                float(row["sd"]),
            )
            for row in csv.DictReader(file)
        }


NUMBERS = read_printed()


def methods_of(table: str) -> list[list[tuple[str, str]]]:
    """Return the groups of (model, λ) that are ranked together in a table."""
    if table == "5":
        return [[(variant, kl) for kl in KL] for variant in VARIANTS]
    names = dict.fromkeys(model for name, model, *_ in NUMBERS if name == TABLES[table])
    return [[(model, "") for model in names]]


def means_of(table: str, methods: list[tuple[str, str]]) -> np.ndarray:
    return np.array([[NUMBERS[TABLES[table], *m, *c][0] for c in COLUMNS] for m in methods])


def ranks_of(table: str) -> dict[tuple[str, str], np.ndarray]:
    """Return the ranks of each method by column, recomputed from the means."""
    found = {}
    for methods in methods_of(table):
        ranks = rankdata(-means_of(table, methods), axis=0)
        found |= dict(zip(methods, ranks, strict=True))
    return found


def gains(variant: str) -> np.ndarray:
    """Return the improvement over λ = 0 in points: a row for each λ, a column for `COLUMNS`."""
    means = means_of("5", [(variant, kl) for kl in KL])
    return means[1:] - means[0]


def signed(value: float, digits: int = 1) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def row_of(start: str) -> str:
    """Return the line of the page that begins with a text."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(start)]
    return line


def test_the_stored_numbers_are_the_papers(shared_paper):
    theirs = (shared_paper / "tables.csv").read_text(encoding="utf-8")
    assert PRINTED.read_text(encoding="utf-8") == theirs


def test_one_printed_rank_does_not_follow_from_its_columns():
    off = {}
    for table in TABLES:
        for method, ranks in ranks_of(table).items():
            printed = NUMBERS[TABLES[table], *method, "rank", "rank"]
            recomputed = round(float(ranks.mean()), 3), round(float(ranks.std(ddof=1)), 3)
            if recomputed != printed:
                off[table, *method] = printed, recomputed
    assert off == {("5", "ABMIL+ProbSA Diag", "0.0"): ((4.0, 1.265), (4.0, 1.095))}
    line = row_of("- Table 5 prints the rank")
    assert "4.000 ± 1.265" in line and "4.000 ± 1.095" in line and "Diag at λ = 0" in line


def test_the_sentences_that_the_tables_contradict():
    ranks = {method: ranks.mean() for method, ranks in ranks_of("5").items()}
    worst = [v for v in VARIANTS[:3] if max(KL, key=lambda kl, v=v: ranks[v, kl]) != "0.0"]
    assert worst == ["T-ABMIL+ProbSA Dirac"]
    line = row_of('- "The baselines')
    for kl in ("0.0", "1.0"):
        assert f"{ranks['T-ABMIL+ProbSA Dirac', kl]:.3f}" in line

    lower = []
    for variant in VARIANTS:
        for k, metric in enumerate(("AUROC", "F1")):
            means = gains(variant)[:, k::2].mean(1)
            if means.argmax() != KL.index("cyclical") - 1:
                lower.append((variant, metric, means))
    assert [(v, m) for v, m, _ in lower] == [("T-ABMIL+ProbSA Diag", "AUROC")]
    means = lower[0][2]
    line = row_of("- Cyclical λ")
    assert f"{signed(means[-1], 3)} points" in line
    assert f"λ = {KL[means.argmax() + 1]} has {signed(means.max(), 3)}" in line

    every = {m: means_of(t, [(m, "")])[0] for t in "23" for m, _ in methods_of(t)[0]}
    auroc = {m: v[::2] for m, v in every.items()}
    better = [m for m, (rsna, *others) in auroc.items() if rsna > min(others)]
    assert better == ["IIBMIL", "VMIL"]
    line = row_of('- "All methods')
    for method in better:
        assert all(f"{v:.1f}" in line for v in auroc[method][[0, 2]])

    by_auroc = {model: ranks[::2].mean() for (model, _), ranks in ranks_of("3").items()}
    first = [m for m, rank in by_auroc.items() if rank == min(by_auroc.values())]
    assert first == ["T-ABMIL+ProbSA Dirac", "T-ABMIL"]
    assert f"{min(by_auroc.values()):.3f}" in row_of('- Dirac "yields')


def test_the_gains_of_claim_1():
    def extent(base: str, columns: list[int]) -> str:
        own = np.concatenate([gains(v)[:, columns] for v in VARIANTS if v.startswith(f"{base}+")])
        return f"{signed(own.min())} to {signed(own.max())}"

    line = row_of("| 1 |")
    (said,) = re.findall(r"gains over ABMIL, (.*?); over T-ABMIL, (.*?) on all three", line)
    for k, data in enumerate(SETS):
        auroc = extent("ABMIL", [2 * k])
        f1 = extent("ABMIL", [2 * k + 1])
        between = " points of AUROC and " if k == 0 else " and "
        of = " of F1 on " if k == 0 else " on "
        assert f"{auroc}{between}{f1}{of}{data}" in said[0]
    assert said[1] == f"{extent('T-ABMIL', [0, 2, 4])} and {extent('T-ABMIL', [1, 3, 5])}"


def test_the_overheads_of_claim_9():
    def extent(base: str) -> str:
        times = {
            (model, data): mean
            for (table, model, _, data, metric), (mean, _) in NUMBERS.items()
            if metric == "ms"
        }
        ratios = [
            times[v, data] / times[base, data]
            for v in VARIANTS
            if v.startswith(f"{base}+")
            for data in SETS
        ]
        return f"{min(ratios):.1f} to {max(ratios):.1f} ×"

    line = row_of("| 9 |")
    assert f"The paper reports {extent('ABMIL')} and {extent('T-ABMIL')}" in line


def test_the_numbers_of_parameters():
    rows = re.findall(r"^\| (`.*`) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    said = {name: n for names, n in rows for name in re.findall(r"`([\w-]+)`", names)}
    counted = {}
    for name in ORDER:
        parameters = sum(p.numel() for p in build(name, in_dim=2048).parameters())
        counted[name] = f"{parameters / 1e6:.1f}"
    assert said == counted
    fewest, most = (f(map(float, said.values())) for f in (min, max))
    assert f"have {fewest} to {most} million parameters" in PAGE


def test_the_choices_that_the_page_lists(tmp_path):
    names = dict(build("abmil", in_dim=4).named_parameters())
    assert "attention.trunk.first.bias" in names and "attention.mean.bias" not in names
    assert TrainingConfig().warmup_epochs == 10  # in epochs, by its name
    rows = [f"b{k},{k % 2},{'test' if k < 20 else 'train'}" for k in range(120)]
    (tmp_path / "labels.csv").write_text("\n".join(["bag,label,split", *rows]) + "\n")
    for split in protocol_splits(read_table(tmp_path / "labels.csv"), splits=5, seed=0):
        assert len(split.val) / (len(split.train) + len(split.val)) == 0.2
    (weight,) = re.findall(r"λ = 1 .* λ = ([\d.]+) of the equations", PAGE)
    assert weight == f"{1 / 35:.3f}"
    positive, slides = map(int, re.findall(r"\((\d+) of (\d+) slides are positive\)", PAGE)[0])
    assert f"an F1 of {100 * 2 * positive / (positive + slides):.1f}" in PAGE


def test_the_published_slides_of_camelyon16(shared_data):
    path = shared_data / "labels_splits" / "camelyon16_labels_camil.csv"
    labels = re.findall(r"(test_\d+),(\w+),", path.read_text())
    kept = {slide: label for slide, label in labels if slide != "test_049"}
    assert len(kept) == 129 and sum(label == "tumor_tissue" for label in kept.values()) == 49


def test_the_recipes_name_the_bags_of_the_figures(shared_paper):
    source = (shared_paper / "probsa_paper.tex").read_text(encoding="utf-8")
    recipes = {"rsna": "rsna", "panda": "panda", "camelyon": "camelyon16"}
    labels = re.findall(r"label\{fig:attmaps-(\w+?)-(\w+)\}", source)
    shown = [(data, bag) for data, bag in labels if bag != "main"]
    assert len(shown) == 9 and {data for data, _ in shown} == recipes.keys()
    for data, bag in shown:
        recipe = ROOT / "recipes" / f"{recipes[data]}.yaml"
        assert bag in recipe.read_text(encoding="utf-8")
