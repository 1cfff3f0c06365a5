"""Evaluate attention MIL on the five classic benchmarks with the protocol of Ilse et al. (2018).

    python benchmarks/real/mil_benchmarks.py --out results.csv     # resumes; --table: only print
    python benchmarks/real/mil_benchmarks.py --check               # probsa must be importable

Ten folds and five repeats, with learning rate and weight decay chosen within each training part,
take 30 million SGD steps on one small bag each. Autograd needs 0.4 to 1 ms per step, mostly
overhead; the C code below needs 0.03 to 0.3 ms. It is built by the C compiler `CC`, or `cc` (GCC or
Clang). `--check` verifies that it equals `probsa.models.build("abmil", ...)` under autograd and
`torch.optim.SGD`, including dropout.
"""

import argparse
import ctypes
import functools
import os
import subprocess
import tempfile
import time
import zlib
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.ctypeslib import ndpointer
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold, train_test_split

PUBLISHED = {"musk1": (0.892, 0.900), "elephant": (0.868, 0.857), "musk2": (0.858, 0.863),
             "tiger": (0.839, 0.845), "fox": (0.615, 0.603)}  # fmt: skip
GRID = tuple(product((5e-4, 1e-4), (5e-3, 3e-2)))
EPOCHS, MOMENTUM, FOLDS, MODELS = 100, 0.9, 10, ("attention", "gated")
HIDDEN, INNER = (256, 128, 64), 64
COLUMNS = ("dataset,model,repeat,fold,lr,weight_decay,holdout_accuracy,holdout_nll,"
           "test_bags,correct,accuracy,test_nll,seconds")  # fmt: skip
Pair = tuple[float, float]  # learning rate, weight decay
Floats = NDArray[np.floating]
Steps = tuple[NDArray[np.int32], NDArray[np.uint8]]  # the bag of each step, and its dropout bits

# After ReLU and dropout, three quarters of the activations are 0 and pass no gradient, so the loops
# visit only the others. A row of weights belongs to one input, so a zero input skips the whole row.
# A row is read, used and updated in one visit. Activations are initialised with their dropout
# factors, 0 or `scale`.
SOURCE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>
typedef REAL real;
typedef real vec __attribute__((vector_size(64), may_alias));
typedef struct { real lr, decay, momentum, scale; } options;
enum {  // strides are a cache line longer than rows: columns 1 KiB apart would evict each other
    L = 64 / sizeof(real), H1 = 256, H2 = 128, H3 = 64, K = 64, A = K * (1 + GATED), GAP = 16,
    S1 = H1 + GAP, S2 = H2 + GAP, S3 = H3 + GAP, W2 = P * H1 + H1, W3 = W2 + H1 * H2 + H2,
    WA = W3 + H2 * H3 + H3, OA = WA + H3 * A + A, WO = OA + K, BO = WO + H3, SIZE = BO + 16
};
#define INLINE static inline __attribute__((always_inline))
#define ROW(p, i) ((vec *)((p) + (long)(i)))
#define SIGMOID(x) (1 / (1 + exp((x) > -80 ? -(x) : 80)))  // -ffast-math excludes infinity
INLINE real total(vec s) {
    for (int m = L / 2; m; m /= 2) for (int l = 0; l < m; l++) s[l] += s[l + m];
    return s[0];
}

INLINE int nonzero(const real *h, int stride, int n, int *list) {
    int c = 0;
    for (int i = 0; i < n; i++) { list[c] = i; c += h[(long)i * stride] != 0; }
    return c;
}

INLINE void update(real *restrict w, real *restrict v, const real *g, int m, options o) {
    for (int j = 0; j < m; j++)  // as torch.optim.SGD
        w[j] -= o.lr * (v[j] = o.momentum * v[j] + (g[j] + o.decay * w[j]));
}

// z = h W + b; or ReLU(h W + b) times the dropout factors in z, if the rows of z have a gap.
INLINE void forward(const real *h, int in, int hs, int n, const real *w, int out, real *z, int zs) {
    int list[in];
    for (int i = 0; i < n; i++, h += hs, z += zs) {
        int c = nonzero(h, 1, in, list);
        vec s[H1 / L];
        for (int u = 0; u < out / L; u++) s[u] = ROW(w, in * out)[u];
        for (int q = 0; q < c; q++)
            for (int u = 0; u < out / L; u++) s[u] += h[list[q]] * ROW(w, list[q] * out)[u];
        const real *r = (real *)s;
        for (int j = 0; j < out; j++) z[j] = zs > out ? z[j] * (r[j] > 0 ? r[j] : 0) : r[j];
    }
}

// d: gradient at this layer's outputs; e: at the previous layer's, before its ReLU and dropout.
// a[i] * u[k] is the contribution of the pooling to the gradient of embedding (i, k).
INLINE void backward(const real *h, int in, int hs, int n, real *w, real *v, int out, const real *d,
                     int ds, real *e, const real *a, const real *u, options o) {
    int list[n];
    for (int k = 0; k <= in; k++, w += out, v += out) {  // the last row is the bias
        vec g[H1 / L] = {0};
        int c = k < in ? nonzero(h + k, hs, n, list) : n;
        if (k == in) for (int i = 0; i < n; i++) list[i] = i;
        if (e && k < in) for (int i = 0; i < n; i++) e[i * hs + k] = 0;
        for (int q = 0; q < c; q++) {
            long i = list[q], at = i * hs + k;
            real hk = k < in ? h[at] : 1;
            vec s = {0};
            for (int j = 0; j < out / L; j++) g[j] += hk * ROW(d, i * ds)[j];
            if (e) for (int j = 0; j < out / L; j++) s += ROW(w, 0)[j] * ROW(d, i * ds)[j];
            if (e && k < in) e[at] = o.scale * (total(s) + (a ? a[i] * u[k] : 0));
        }
        update(w, v, (real *)g, out, o);
    }
}

// t: hidden values of the attention (tanh, then sigmoid), later the gradients before both.
static void head(const real *h, int n, real *w, real *v, real *t, real y, real *e, options o) {
    real top = -1e30, sum = 0, mean = 0, a[n], g[n], gw[K + H3 + 1] = {0};
    for (int i = 0; i < n; i++) {
        real *ti = t + i * A, *si = ti + A - K;
        a[i] = g[i] = 0;
        for (int k = 0; k < K; k++) ti[k] = tanh(ti[k]);
        if (GATED) for (int k = 0; k < K; k++) si[k] = SIGMOID(si[k]);
        for (int k = 0; k < K; k++) a[i] += w[OA + k] * ti[k] * (GATED ? si[k] : 1);
        for (int k = 0; k < H3; k++) g[i] += w[WO + k] * h[i * S3 + k];
        top = a[i] > top ? a[i] : top;
    }
    for (int i = 0; i < n; i++) sum += a[i] = exp(a[i] - top);
    for (int i = 0; i < n; i++) mean += (a[i] /= sum) * g[i];
    real d = gw[K + H3] = SIGMOID(mean + w[BO]) - y;
    for (int i = 0; i < n; i++) {
        real *ti = t + i * A, *si = ti + A - K, df = d * a[i] * (g[i] - mean);
        a[i] *= d;
        for (int k = 0; k < H3; k++) gw[K + k] += a[i] * h[i * S3 + k];
        for (int k = 0; k < K; k++) {
            real th = ti[k], s = GATED ? si[k] : 1, gt = df * w[OA + k] * s;
            gw[k] += df * th * s;
            if (GATED) si[k] = gt * th * (1 - s);
            ti[k] = gt * (1 - th * th);
        }
    }
    backward(h, H3, S3, n, w + WA, v + WA, A, t, A, e, a, w + WO, o);
    update(w + OA, v + OA, gw, K + H3 + 1, o);  // w, the classifier, its bias
}

// Takes one step per bag of `order`; `bits` has one bit per unit of each instance: 0 drops it.
int train(real *weights, const real *x, const int32_t *start, const real *y, const int32_t *order,
          long steps, long longest, const uint8_t *bits, double lr, double decay, double momentum,
          double scale) {
    options o = {lr, decay, momentum, scale};
    real factor[256][8], *w = aligned_alloc(64, 16 * (SIZE + longest * (S1 + S2 + S3 + A)));
    if (!w) return 1;
    real *v = w + SIZE, *h1 = v + SIZE, *h2 = h1 + longest * S1, *h3 = h2 + longest * S2,
         *d1 = h3 + longest * S3, *d2 = d1 + longest * S1, *d3 = d2 + longest * S2,
         *t = d3 + longest * S3, *rows[] = {h1, h2, h3};
    const int width[] = {H1, H2, H3};
    memcpy(w, weights, (BO + 1) * sizeof(real));
    memset(v, 0, SIZE * sizeof(real));
    for (int b = 0; b < 2048; b++) factor[b / 8][b % 8] = o.scale * (b / 8 >> b % 8 & 1);
    for (long s = 0; s < steps; s++) {
        const real *xs = x + (long)start[order[s]] * P;
        int n = start[order[s] + 1] - start[order[s]];
        for (int i = 0; i < n; i++)
            for (int l = 0; l < 3; l++)
                for (int j = 0; j < width[l]; j += 8)
                    memcpy(rows[l] + i * (width[l] + GAP) + j, factor[*bits++], sizeof *factor);
        forward(xs, P, P, n, w, H1, h1, S1);
        forward(h1, H1, S1, n, w + W2, H2, h2, S2);
        forward(h2, H2, S2, n, w + W3, H3, h3, S3);
        forward(h3, H3, S3, n, w + WA, A, t, A);
        head(h3, n, w, v, t, y[order[s]], d3, o);
        backward(h2, H2, S2, n, w + W3, v + W3, H3, d3, S3, d2, 0, 0, o);
        backward(h1, H1, S1, n, w + W2, v + W2, H2, d2, S2, d1, 0, 0, o);
        backward(xs, P, P, n, w, v, H1, d1, S1, 0, 0, 0, o);
    }
    memcpy(weights, w, (BO + 1) * sizeof(real));
    free(w);
    return 0;
}
"""


class Bags(NamedTuple):
    """Concatenated bags: bag b is `x[start[b]:start[b + 1]]`."""

    x: Floats
    start: NDArray[np.int32]
    y: Floats

    def scaled_by(self, chosen: NDArray) -> "Bags":
        """Standardise with mean and standard deviation of the instances of the chosen bags."""
        in_chosen = np.isin(np.arange(len(self.y)), chosen).repeat(np.diff(self.start))
        part = self.x[in_chosen].astype(float)
        x = (self.x - part.mean(0)) / np.where(part.std(0) > 0, part.std(0), 1)
        return self._replace(x=x.astype(self.x.dtype))


def load(path: Path) -> Bags:
    """Load a benchmark from an `.npz` file with `X`, `bag` and `y`."""
    with np.load(path) as z:
        x, bag, y = z["X"], z["bag"], z["y"].astype(np.float32)
    start = np.concatenate([[0], np.bincount(bag).cumsum()]).astype(np.int32)
    return Bags(x[np.argsort(bag, kind="stable")].astype(np.float32), start, y=y)


def shapes(features: int, *, gated: bool) -> list[tuple[int, tuple[int, ...]]]:
    """Return (inputs, shape) of each weight in the order of the C code; the gate follows V."""
    widths = (features, *HIDDEN, INNER * (1 + gated))
    layers = [(a, s) for a, b in pairwise(widths) for s in ((a, b), (b,))]
    return [*layers, (INNER, (INNER,)), (HIDDEN[-1], (HIDDEN[-1],)), (HIDDEN[-1], (1,))]


def views(flat: Floats, features: int, *, gated: bool) -> list[Floats]:
    """Return weight and bias of each layer, attention's w, the classifier's weight and bias."""
    sizes = [s for _, s in shapes(features, gated=gated)]
    parts = np.split(flat, np.cumsum([np.prod(s) for s in sizes])[:-1])
    return [part.reshape(s) for part, s in zip(parts, sizes, strict=True)]


def drawn(
    bags: Bags, chosen: NDArray, *, rng: np.random.Generator, gated: bool, epochs: int = EPOCHS
) -> tuple[Floats, Steps]:
    """Draw initial weights as torch's `Linear` does, the order of bags, and dropout bits (1/2)."""
    sizes = shapes(bags.x.shape[1], gated=gated)
    flat = np.concatenate([rng.uniform(-1, 1, np.prod(s)) / a**0.5 for a, s in sizes])
    order = np.concatenate([rng.permutation(chosen) for _ in range(epochs)]).astype(np.int32)
    count = int(np.diff(bags.start)[order].sum()) * sum(HIDDEN) // 8
    return flat.astype(bags.x.dtype), (order, np.frombuffer(rng.bytes(count), np.uint8))


@functools.cache
def kernel(features: int, *, gated: bool, dtype: np.dtype) -> ctypes.CDLL:
    """Build the C code for these widths, which as constants let the compiler unroll rows."""
    real = "double" if dtype.itemsize == 8 else "float"
    flags = f"-DREAL={real} -DP={features} -DGATED={int(gated)} -std=gnu11 -O3 -march=native"
    flags += " -ffast-math -shared -fPIC -x c - -lm -o"
    with tempfile.TemporaryDirectory() as folder:
        command = [*os.environ.get("CC", "cc").split(), *flags.split(), f"{folder}/train.so"]
        subprocess.run(command, input=SOURCE, text=True, check=True)
        library = ctypes.CDLL(command[-1])
    floats, index, byte = (ndpointer(t, flags="C") for t in (dtype, np.int32, np.uint8))
    longs, option = [ctypes.c_long] * 2, [ctypes.c_double] * 4
    library.train.argtypes = [floats, floats, index, floats, index, *longs, byte, *option]
    return library


def train(
    flat: Floats, bags: Bags, *, gated: bool, steps: Steps, pair: Pair, scale: float = 2.0
) -> Floats:
    """Return the weights after these steps with (learning rate, weight decay) `pair`."""
    w, (order, bits), longest = flat.copy(), steps, int(np.diff(bags.start).max())
    library = kernel(bags.x.shape[1], gated=gated, dtype=w.dtype)
    if library.train(w, *bags, order, len(order), longest, bits, *pair, MOMENTUM, scale):
        raise MemoryError(f"not enough memory for a bag of {longest} instances")
    return w


def scores(flat: Floats, bags: Bags, *, chosen: NDArray, gated: bool) -> tuple[int, float]:
    """Return the number of correctly classified chosen bags, and their mean NLL."""
    *layers, wa, ba, score, u, bias = views(flat, bags.x.shape[1], gated=gated)
    h = bags.x
    for w, b in zip(layers[::2], layers[1::2], strict=True):
        h = np.maximum(h @ w + b, 0)
    t = h @ wa + ba
    gate = 1 / (1 + np.exp(-np.maximum(t[:, INNER:], -80))) if gated else 1
    f = (np.tanh(t[:, :INNER]) * gate) @ score
    first = bags.start[:-1]
    a = np.exp(f - np.maximum.reduceat(f, first).repeat(np.diff(bags.start)))
    logits = np.add.reduceat(a * (h @ u), first) / np.add.reduceat(a, first) + bias
    z, y = logits[chosen].astype(float), bags.y[chosen] > 0
    nll = float(np.logaddexp(0, np.where(y, -z, z)).mean())
    return int(((z > 0) == y).sum()), nll if np.isfinite(nll) else np.inf


def one_fold(
    bags: Bags, inside: NDArray, *, outside: NDArray, gated: bool, seed: list[int]
) -> tuple[float, ...]:
    """Choose the pair within the training part, retrain on all of it, test; return the results."""
    began, rng = time.perf_counter(), np.random.default_rng(seed)
    fit, hold = train_test_split(
        inside, test_size=0.2, stratify=bags.y[inside], random_state=int(rng.integers(2**31))
    )
    scaled, tried = bags.scaled_by(fit), []
    flat, steps = drawn(scaled, fit, rng=rng, gated=gated)
    for pair in GRID:  # all pairs have the same initial weights, order and dropout
        w = train(flat, scaled, gated=gated, steps=steps, pair=pair)
        right, nll = scores(w, scaled, chosen=hold, gated=gated)
        tried.append((-right, nll, pair))
    minus, hold_nll, pair = min(tried)
    scaled = bags.scaled_by(inside)
    flat, steps = drawn(scaled, inside, rng=rng, gated=gated)
    w = train(flat, scaled, gated=gated, steps=steps, pair=pair)
    right, nll = scores(w, scaled, chosen=outside, gated=gated)
    test = (len(outside), right, right / len(outside), nll)
    return (*pair, -minus / len(hold), hold_nll, *test, time.perf_counter() - began)


def run(data: Path, out: Path, *, datasets: list[str], models: list[str], repeats: int) -> None:
    """Append the rows that `out` does not contain yet."""
    lines = out.read_text().split("\n")[:-1] if out.exists() else [COLUMNS]
    out.write_text("\n".join(lines) + "\n")  # removes an incomplete last line
    done = {tuple(line.split(",")[:4]) for line in lines}
    for name, model, repeat in product(datasets, models, range(repeats)):
        bags = load(data / f"{name}.npz")
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=repeat).split(bags.y, bags.y)
        for fold, (inside, outside) in enumerate(folds):
            key = (name, model, str(repeat), str(fold))
            if key in done:
                continue
            seed = [zlib.crc32(name.encode()), repeat, fold]
            row = one_fold(bags, inside, outside=outside, gated=model == "gated", seed=seed)
            with out.open("a") as f:
                print(*key, *(f"{v:.6g}" for v in row), sep=",", file=f)
            print(*key, f"{row[-3]:.3f}, {row[-1]:.1f} s", flush=True)


def table(out: Path) -> None:
    """Print the mean accuracy, its deviation over repeats and its standard error over folds."""
    print(f"{'dataset':10}{'model':11}{'accuracy ± sd':>15}{'s.e.':>8}{'published':>11}  repeats")
    rows = [line.split(",") for line in out.read_text().split("\n")[:-1]]
    for (name, known), (m, model) in product(PUBLISHED.items(), enumerate(MODELS)):
        right = [float(r[-3]) for r in rows if r[:2] == [name, model]]  # by repeat, then fold
        a = np.reshape(right[: len(right) // FOLDS * FOLDS], (-1, FOLDS))
        if len(a) > 1:
            sd, error = a.mean(1).std(ddof=1), a.std(ddof=1) / a.size**0.5
            cells = f"{a.mean():7.3f} ± {sd:.3f}{error:8.3f}{known[m]:11.3f}  {len(a)}"
            print(f"{name:10}{model:11}{cells}")


def reference(
    flat: Floats, bags: Bags, *, gated: bool, steps: Steps, pair: Pair, scale: float
) -> Floats:
    """Do the same as `train` with the package's model, autograd and `torch.optim.SGD`."""
    import torch

    from probsa.core.bags import Bag, pack
    from probsa.models import build

    flat, features, trunk = flat.copy(), bags.x.shape[1], "gated" if gated else "tanh"
    model: torch.nn.Module = build(
        "abmil", in_dim=features, embed=HIDDEN, attention_dim=INNER, dropout=0.5, trunk=trunk
    ).double()
    *parts, wa, ba, score, u, bias = views(flat, features, gated=gated)
    for c in range(0, len(ba), INNER):
        parts += [wa[:, c : c + INNER], ba[c : c + INNER]]
    parts = [part.T for part in (*parts, score[:, None], u[:, None], bias)]
    pairs = list(zip(model.parameters(), parts, strict=True))
    for p, a in pairs:
        p.data = torch.tensor(a)
    masks: list[torch.Tensor] = []
    for m in model.embed.net[2::3]:  # every third module is a dropout
        m.register_forward_hook(lambda _m, inputs, _out: inputs[0] * scale * masks.pop(0))
    optimiser = torch.optim.SGD(model.parameters(), pair[0], MOMENTUM, weight_decay=pair[1])
    bits = np.unpackbits(steps[1].reshape(-1, sum(HIDDEN) // 8), axis=1, bitorder="little")
    units = np.split(bits, np.diff(bags.start)[steps[0]].cumsum()[:-1])
    no_graph = {"edges": torch.empty((2, 0), dtype=torch.long), "weights": torch.empty(0)}
    for b, unit in zip(steps[0], units, strict=True):
        x = torch.tensor(bags.x[bags.start[b] : bags.start[b + 1]])
        masks += torch.tensor(unit).split(HIDDEN, dim=1)
        bag = pack([Bag(name="bag", x=x, y=int(bags.y[b]), **no_graph)])
        optimiser.zero_grad()
        model.losses(model(bag), bag)["nll"].backward()
        optimiser.step()
    for p, a in pairs:
        a[...] = p.detach().numpy()
    return flat


def check() -> None:
    """Compare the C code with `reference` in double precision, without and with dropout."""
    rng = np.random.default_rng(0)
    start = np.concatenate([[0], rng.integers(1, 30, 12).cumsum()]).astype(np.int32)
    bags = Bags(rng.standard_normal((start[-1], 37)), start, y=1.0 * rng.integers(0, 2, 12))
    for gated, dropout in product((False, True), (False, True)):
        flat, (order, bits) = drawn(bags, np.arange(12), rng=rng, gated=gated, epochs=5)
        options = {"gated": gated, "pair": (5e-2, 3e-3), "scale": 2.0 if dropout else 1.0}
        options["steps"] = (order, bits if dropout else np.full_like(bits, 255))
        ours, theirs = train(flat, bags, **options), reference(flat, bags, **options)
        gap, moved = np.abs(ours - theirs).max(), np.abs(ours - flat).max()
        print(f"gated {gated}, dropout {dropout}: 60 steps move {moved:.2f}, differ by {gap:.1e}")
        assert gap < 1e-9, "the C code differs from the package's model"


def main() -> None:
    data = Path(__file__).resolve().parents[3] / "shared/data/mil_benchmarks"
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--data", type=Path, default=data)
    p.add_argument("--out", type=Path, default=Path("results.csv"))
    p.add_argument("--datasets", nargs="+", choices=PUBLISHED, default=list(PUBLISHED))
    p.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--table", action="store_true", help="print the table of --out and stop")
    p.add_argument("--check", action="store_true", help="compare the C code with the package")
    a = p.parse_args()
    if a.check:
        return check()
    if not a.table:
        run(a.data, a.out, datasets=a.datasets, models=a.models, repeats=a.repeats)
    return table(a.out)


if __name__ == "__main__":
    main()
