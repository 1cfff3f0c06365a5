"""Compare the durations of training steps and predictions within one run.

The contestants alternate (A, B, A, B, …), so that other work on the machine affects all of them
equally. A ratio is the median of the paired ratios of all rounds, given with their range.

    python benchmarks/bench_step.py [--only step,field,maps,deletion] [--device cuda]
        [--out results.json]
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import probsa
from probsa.core.bags import Bag, Bags, pack
from probsa.core.graphs import chain, grid
from probsa.core.randomness import random_stream
from probsa.evaluation.faithfulness import SAMPLES, SHARES
from probsa.layers import recorded_pooling
from probsa.training.config import TrainingConfig
from probsa.training.optimizers import make_optimizer
from probsa.variational.objectives import objective
from probsa.variational.posteriors import probability_positive

try:
    from torchmil.data import collate_fn
    from torchmil.models import ProbSmoothABMIL, TransformerABMIL, TransformerProbSmoothABMIL
except ImportError:
    collate_fn = None

P = 2048
D = 512
D_F = 128
LARGE = "1,200+2,500+4,000+6,000"
SIZES = {
    "32 of 24-57": (24, 58, 32),
    "32 of 10-120": (10, 121, 32),
    "1 of 4,000": [4000],
    LARGE: [1200, 2500, 4000, 6000],
}
Step = Callable[[], object]
DEVICE = torch.device("cpu")
"""The device of all contestants, from the command line."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison: the ratio of two durations on one batch."""

    section: str
    batch: str
    what: str
    """The names of numerator and denominator."""
    ratio: float
    low: float
    high: float
    goal: str
    met: bool | None
    milliseconds: tuple[float, float]


def batch_of(name: str) -> Bags:
    """Return bags of standard normal features; small bags are chains, slides are grids."""
    source = random_stream("bench", name)
    sizes = SIZES[name]
    if isinstance(sizes, tuple):
        low, high, count = sizes
        sizes = torch.randint(low, high, (count,), generator=source).tolist()
    return pack([_bag(n, k, source, slide=n >= 1000) for k, n in enumerate(sizes)]).to(DEVICE)


def slide_of(n: int, source: torch.Generator, *, features: int = P) -> Bags:
    """Return a batch of one slide of n patches."""
    return pack([_bag(n, 0, source, slide=True, features=features)]).to(DEVICE)


def _bag(n: int, k: int, source: torch.Generator, *, slide: bool, features: int = P) -> Bag:
    width = int(n**0.5)
    cells = torch.stack([torch.arange(n) % width, torch.arange(n) // width], 1)
    edges = grid(cells, stride=1.0) if slide else chain(n)
    weights = 0.5 + torch.rand(edges.shape[1], generator=source)
    x = torch.randn(n, features, generator=source)
    coords = cells if slide else cells[:, :1] + width * cells[:, 1:]
    return Bag(name=f"bag{k}", x=x, edges=edges, weights=weights, y=float(k % 2), coords=coords)


# ------------------------------------------------------------------------------------ contestants


def ours(name: str, bags: Bags, *, bf16: bool = False, **arguments: Any) -> Step:
    """Return a step of one of our models: forward pass, losses and backward pass."""
    torch.manual_seed(0)
    model = probsa.models.build(name, in_dim=bags.x.shape[1], **arguments).train().to(DEVICE)
    weights = model.loss_weights
    generator = random_stream("bench", name, device=DEVICE)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=bf16):
            out = model(bags, generator=generator)
            terms = model.losses(out, bags)
        objective(terms, weights=weights, kl_weight=1.0).backward()

    return step


def bare_products(n: int) -> Step:
    """Return the matrix products of all linear layers of `abmil`, into preallocated memory."""
    x, h, t, f = (torch.randn(n, d, device=DEVICE) for d in (P, D, D_F, 1))
    w, v, u = (torch.randn(d, n, device=DEVICE) for d, n in ((D, P), (D_F, D), (1, D_F)))
    dh = torch.empty_like(h)
    dt = torch.empty_like(t)
    dw = torch.empty_like(w)
    dv = torch.empty_like(v)
    du = torch.empty_like(u)

    def step() -> None:
        torch.mm(x, w.T, out=h)
        torch.mm(h, v.T, out=t)
        torch.mm(t, u.T, out=f)
        torch.mm(f.T, t, out=du)
        torch.mm(f, u, out=dt)
        torch.mm(dt.T, h, out=dv)
        torch.mm(dt, v, out=dh)
        torch.mm(dh.T, x, out=dw)

    return step


def adam(name: str, **arguments: Any) -> Step:
    """Return the step of the default optimiser."""
    model = probsa.models.build(name, in_dim=P, **arguments).to(DEVICE)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    return make_optimizer(model, TrainingConfig()).step


def theirs(model: nn.Module, bags: Bags, *, has_graph: bool = True) -> Step:
    """Return a step of a torchmil model on the padded batch of its own collate function."""
    batch = padded(bags)
    inputs = (batch["Y"], batch["X"])
    if has_graph and not isinstance(model, TransformerABMIL):
        inputs += (batch["adj"],)
    model.train().to(DEVICE)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        _, terms = model.compute_loss(*inputs, mask=batch["mask"])
        torch.stack(list(terms.values())).sum().backward()

    return step


def padded(bags: Bags) -> Any:
    """Return torchmil's batch: padded, masked, with normalised sparse adjacency matrices."""
    assert collate_fn is not None and bags.y is not None
    degree = bags.degrees
    items = []
    for b, (start, stop) in enumerate(zip(bags.offsets[:-1], bags.offsets[1:], strict=True)):
        bag_edges = (bags.edges[0] >= start) & (bags.edges[0] < stop)
        i, j = bags.edges[:, bag_edges]
        w = bags.weights[bag_edges] * (degree[i] * degree[j]).rsqrt()
        rows = torch.stack([torch.cat([i, j]), torch.cat([j, i])]) - start
        n = int(stop - start)
        adj = torch.sparse_coo_tensor(
            rows, torch.cat([w, w]), (n, n), check_invariants=False
        ).coalesce()
        items.append({"X": bags.x[start:stop], "adj": adj, "Y": bags.y[b]})
    return collate_fn(items)


def first_layer(*, relu: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(P, D), nn.ReLU()) if relu else nn.Linear(P, D)


# ------------------------------------------------------------------------------------------- race


def race(contestants: dict[str, Step], *, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each contestant in every round after a warm-up round.

    The contestant that starts changes from round to round.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for k in range(rounds + 1):
        for name in names[k % len(names) :] + names[: k % len(names)]:
            start = time.perf_counter()
            contestants[name]()
            if DEVICE.type == "cuda":
                torch.cuda.synchronize(DEVICE)
            times[name].append(time.perf_counter() - start)
    return {name: seconds[1:] for name, seconds in times.items()}


def compare(
    times: dict[str, list[float]], a: str, b: str, *, goal: float | None, **labels: str
) -> Row:
    """Return the ratio a / b; a goal above 0 is an upper bound, one below 0 a lower bound."""
    ratios = [x / y for x, y in zip(times[a], times[b], strict=True)]
    ratio = statistics.median(ratios)
    met = None if goal is None else ratio <= goal if goal > 0 else ratio >= -goal
    return Row(
        what=f"{a} / {b}",
        ratio=ratio,
        low=min(ratios),
        high=max(ratios),
        goal="" if goal is None else f"{'<=' if goal > 0 else '>='} {abs(goal):g}",
        met=met,
        milliseconds=(1e3 * statistics.median(times[a]), 1e3 * statistics.median(times[b])),
        **labels,
    )


def rounds_for(bags: Bags, rounds: int) -> int:
    """Return more rounds for small batches, whose times are noisy, and fewer for the largest."""
    n = len(bags.x)
    return rounds * 4 if n < 3000 else rounds if n < 10_000 else max(3, rounds // 2)


def section_step(rounds: int) -> Iterator[Row]:
    """Compare ProbSA with plain attention, and plain attention with its matrix products."""
    for batch in SIZES:
        bags = batch_of(batch)
        times = race(
            {
                "abmil": ours("abmil", bags),
                "dirac": ours("abmil-probsa-dirac", bags),
                "diag S=16": ours("abmil-probsa-diag", bags, samples=16),
                "diag S=1000": ours("abmil-probsa-diag", bags, samples=1000),
                "products": bare_products(len(bags.x)),
                "adam": adam("abmil-probsa-diag"),
            },
            rounds=rounds_for(bags, rounds),
        )
        goals = {"dirac": 1.03, "diag S=16": 1.05, "diag S=1000": 1.20}
        labels = {"section": "step", "batch": batch}
        for name, g in goals.items():
            yield compare(times, name, "abmil", goal=g, **labels)
        yield compare(times, "abmil", "products", goal=1.30, **labels)
        yield compare(times, "adam", "abmil", goal=None, **labels)


def section_torchmil(rounds: int) -> Iterator[Row]:
    """Compare ProbSA with torchmil's ProbSmoothABMIL, at our default S and at torchmil's."""
    goals = {16: (-1.4, -1.8, -1.3, None), 1000: (-3.5, -3.5, -1.6, None)}
    for k, batch in enumerate(SIZES):
        bags = batch_of(batch)
        contestants: dict[str, Step] = {}
        for s in goals:
            model = ProbSmoothABMIL((P,), feat_ext=first_layer(relu=True), n_samples_train=s)
            contestants[f"torchmil S={s}"] = theirs(model, bags)
            contestants[f"ours S={s}"] = ours("abmil-probsa-diag", bags, samples=s)
        times = race(contestants, rounds=rounds_for(bags, rounds))
        labels = {"section": "torchmil", "batch": batch}
        for s, goal in goals.items():
            yield compare(times, f"torchmil S={s}", f"ours S={s}", goal=goal[k], **labels)


def section_bf16(rounds: int) -> Iterator[Row]:
    """Compare our bf16 option with torchmil in float32 and with our float32, S = 16."""
    for batch in SIZES:
        bags = batch_of(batch)
        contestants = {
            "ours bf16": ours("abmil-probsa-diag", bags, bf16=True),
            "ours float32": ours("abmil-probsa-diag", bags),
        }
        if collate_fn is not None:
            model = ProbSmoothABMIL((P,), feat_ext=first_layer(relu=True), n_samples_train=16)
            contestants["torchmil S=16"] = theirs(model, bags)
        times = race(contestants, rounds=rounds_for(bags, rounds))
        labels = {"section": "bf16", "batch": batch}
        if collate_fn is not None:
            goal = None if batch == LARGE else -2.5
            yield compare(times, "torchmil S=16", "ours bf16", goal=goal, **labels)
        yield compare(times, "ours float32", "ours bf16", goal=None, **labels)


def section_tabmil(rounds: int) -> Iterator[Row]:
    """Compare our transformers with torchmil's: 2 layers, 8 heads, width 512, S = 16."""
    shape = {"transf_n_layers": 2, "transf_n_heads": 8, "transf_att_dim": 512}
    for batch in SIZES:
        bags = batch_of(batch)
        plain = {"feat_ext": first_layer(relu=False), **shape}
        contestants = {
            "torchmil T-ABMIL": theirs(TransformerABMIL((P,), **plain), bags),
            "tabmil": ours("tabmil", bags),
            "torchmil T-ProbSA": theirs(
                TransformerProbSmoothABMIL((P,), n_samples_train=16, **plain), bags
            ),
            "tabmil-probsa-diag": ours("tabmil-probsa-diag", bags),
            "tabmil-probsa-diag bf16": ours("tabmil-probsa-diag", bags, bf16=True),
        }
        times = race(contestants, rounds=max(3, rounds_for(bags, rounds) // 4))
        labels = {"section": "tabmil", "batch": batch}
        goal = None if batch == LARGE else -2.0
        yield compare(times, "torchmil T-ABMIL", "tabmil", goal=goal, **labels)
        yield compare(times, "torchmil T-ProbSA", "tabmil-probsa-diag", goal=goal, **labels)
        yield compare(times, "torchmil T-ProbSA", "tabmil-probsa-diag bf16", goal=None, **labels)


def section_predict(rounds: int) -> Iterator[Row]:
    """Compare predictions of 10,000 patches: S = 5000, ABMIL and torchmil.

    torchmil's gives the logits; ours also gives the moments that maps need, without explanations.
    """
    bags = slide_of(10_000, random_stream("bench", "predict"))
    contestants: dict[str, Step] = {}
    models = {
        "abmil": ("abmil", {}),
        "S=5000": ("abmil-probsa-diag", {"predict_samples": 5000}),
    }
    for label, (name, arguments) in models.items():
        torch.manual_seed(0)
        model = probsa.models.build(name, in_dim=P, **arguments).eval().to(DEVICE)
        model.explains = False
        contestants[label] = _prediction(model, bags)
        if label == "abmil":
            contestants["first layer"] = torch.no_grad()(lambda model=model: model.instances(bags))
    if collate_fn is not None:
        other = ProbSmoothABMIL((P,), feat_ext=first_layer(relu=True)).eval().to(DEVICE)
        batch = padded(bags)
        contestants["torchmil S=5000"] = torch.no_grad()(
            lambda: other(batch["X"], batch["adj"], batch["mask"]).sigmoid()
        )
    times = race(contestants, rounds=rounds)
    labels = {"section": "predict", "batch": "1 of 10,000"}
    yield compare(times, "S=5000", "abmil", goal=None, **labels)
    yield compare(times, "abmil", "first layer", goal=None, **labels)
    if collate_fn is not None:
        yield compare(times, "torchmil S=5000", "S=5000", goal=-8.0, **labels)


def section_field(rounds: int) -> Iterator[Row]:
    """Compare the field posterior with Diag and ABMIL on small bags and slides, S = 16."""
    source = random_stream("bench", "field")
    batches = {name: batch_of(name) for name in list(SIZES)[:2]}
    for n in (1000, 10_000, 50_000, 200_000):
        batches[f"1 of {n:,}"] = slide_of(n, source, features=1024)
    for batch, bags in batches.items():
        names = ("abmil", "abmil-probsa-diag", "evidence-field")
        times = race({k: ours(k, bags) for k in names}, rounds=rounds_for(bags, rounds))
        labels = {"section": "field", "batch": batch}
        yield compare(times, "evidence-field", "abmil-probsa-diag", goal=None, **labels)
        goal = 3.0 if len(bags.x) > 100_000 else 1.7
        yield compare(times, "evidence-field", "abmil", goal=goal, **labels)


def section_maps(rounds: int) -> Iterator[Row]:
    """Compare predictions of 10,000 patches: mean, std and P(f > 0) against Diag, S = 1000."""
    bags = slide_of(10_000, random_stream("bench", "predict"))
    contestants: dict[str, Step] = {}
    for name in ("abmil-probsa-diag", "abmil-probsa-field", "evidence-field"):
        torch.manual_seed(0)
        model = probsa.models.build(name, in_dim=P).eval().to(DEVICE)
        contestants[name] = _prediction(model, bags)
    times = race(contestants, rounds=rounds)
    labels = {"section": "maps", "batch": "1 of 10,000, S=1000"}
    for name in list(contestants)[1:]:
        yield compare(times, name, "abmil-probsa-diag", goal=2.0, **labels)


def section_deletion(rounds: int) -> Iterator[Row]:
    """Compare deletion curves of 10,000 patches, all orders and both ends, with a prediction."""
    n = 10_000
    bags = slide_of(n, random_stream("bench", "predict"))
    orders = [np.random.default_rng(k).permutation(n) for k in range(4)]
    index = torch.from_numpy(np.stack(orders)).to(DEVICE)
    counts = sorted({round(share * (n - 1)) for share in SHARES})
    for name in ("abmil", "abmil-probsa-diag", "evidence-field"):
        torch.manual_seed(0)
        model = probsa.models.build(name, in_dim=P).eval().to(DEVICE)
        with torch.no_grad(), recorded_pooling(samples=SAMPLES) as records:
            model(bags)
        contestants: dict[str, Step] = {
            "prediction": torch.no_grad()(lambda model=model: model(bags).probability),
            "curves": lambda record=records[0]: record.after_removal(index, counts),
        }
        times = race(contestants, rounds=rounds)
        labels = {"section": "deletion", "batch": f"1 of 10,000, {name}"}
        yield compare(times, "curves", "prediction", goal=None, **labels)


def _prediction(model: nn.Module, bags: Bags) -> Step:
    """Return a prediction with everything that is stored of it."""

    def step() -> None:
        with torch.no_grad():
            out = model(bags)
            parts = (out.probability, out.std, out.attention.mean, out.attention.variance.sqrt())
            assert all(bool(part.isfinite().all()) for part in parts)
            probability_positive(out.attention)

    return step


# ----------------------------------------------------------------------------------------- report

SECTIONS = {
    "step": section_step,
    "torchmil": section_torchmil,
    "bf16": section_bf16,
    "tabmil": section_tabmil,
    "predict": section_predict,
    "field": section_field,
    "maps": section_maps,
    "deletion": section_deletion,
}


def machine() -> dict[str, Any]:
    """Return the properties of the machine and the versions on which the times depend."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    flags = set(info.partition("flags")[2].partition("\n")[0].split())
    model = info.partition("model name")[2].partition("\n")[0].strip("\t :")
    return {
        "cpu": model or platform.processor(),
        "gpu": torch.cuda.get_device_name(DEVICE) if DEVICE.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "flags": sorted(flags & {"avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile"}),
        "torch": torch.__version__,
        "probsa": probsa.__version__,
    }


HEAD = "| section | batch | ratio of | ms | ratio | range | goal | |\n" + "|---" * 8 + "|"


def line(r: Row) -> str:
    """Return one line of the Markdown table."""
    ms = " / ".join(f"{m:.3g}" for m in r.milliseconds)
    verdict = "" if r.met is None else "met" if r.met else "**missed**"
    return (
        f"| {r.section} | {r.batch} | {r.what} | {ms} | {r.ratio:.3f} "
        f"| {r.low:.2f}-{r.high:.2f} | {r.goal} | {verdict} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, comma-separated")
    parser.add_argument(
        "--rounds",
        type=int,
        default=15,
        help="rounds of a large batch; small ones have 4 x as many",
    )
    parser.add_argument("--threads", type=int, help="threads of torch; default: torch's own choice")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    arguments = parser.parse_args()
    global DEVICE
    DEVICE = torch.device(arguments.device)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    metadata = machine()
    print(json.dumps(metadata), HEAD, sep="\n\n", flush=True)
    rows: list[Row] = []
    for name in arguments.only.split(","):
        if collate_fn is None and name in ("torchmil", "tabmil"):
            print(
                f"| {name} | not run: torchmil is not installed (pip install torchmil==1.0.2) |"
                + " |" * 6
            )
            continue
        for row in SECTIONS[name](arguments.rounds):
            print(line(row), flush=True)
            rows.append(row)
    if arguments.out:
        content = {"machine": metadata, "rows": [asdict(r) for r in rows]}
        arguments.out.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
