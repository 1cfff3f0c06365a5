"""The command line. Exit status: 0 done; 1 some of many items failed; 2 wrong usage or input."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .errors import InputError, ProbSAError, UnknownName, hint

FLOW = """\
The flow (stages 1 to 3, slides to features, are done by TRIDENT, CLAM and others):

   4 graph, 5 bags      stored bags, labels    read by every command
   6 model              Bags -> Output         probsa models
   7 objective, 8 training                     probsa train
   9 evaluation         predictions, figures   probsa predict, probsa evaluate
  10 maps               mean and variance      probsa map

commands:
  train      train a model on a folder of features and a table of labels
  predict    predict a folder of features with a trained run
  evaluate   figures of a folder of predictions
  map        pictures of where the evidence is and how sure the model is
  models     the models, or one model's arguments
  convert-checkpoint   the weights of a published method's own code, for predict
  demo       all of it on handwritten digits, in a minute, without any file

`probsa COMMAND --help` says more. Every command takes --json.
"""


class Parser(argparse.ArgumentParser):
    """argparse that raises, suggests, and takes no abbreviation."""

    def __init__(self, *, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        lead = "unrecognized arguments: "
        if message.startswith(lead):
            given = message.removeprefix(lead).split()[0].partition("=")[0]
            known = [o for a in self._actions for o in a.option_strings]
            message = f"{self.prog} has no argument {given!r}.{hint(given, known)}"
        raise InputError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; gives its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    try:
        return _dispatch(given)
    except (ProbSAError, OSError) as e:
        said = str(e)
        if isinstance(e, OSError) and not isinstance(e, ProbSAError):
            said = f"cannot read or write {e.filename}: {e.strerror}" if e.filename else said
        if as_json:
            _write(json.dumps({"error": said, "kind": type(e).__name__}))
        sys.stderr.write(f"probsa: error: {said}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("probsa: stopped\n")
        return 130


def _dispatch(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        _write(f"usage: probsa COMMAND ...\n\n{FLOW}")
        return 0
    if given[0] == "--version":
        from . import __version__

        _write(__version__)
        return 0
    if given[0] not in COMMANDS:
        raise UnknownName("command", given[0], COMMANDS)
    return COMMANDS[given[0]](given[1:])


def _write(text: str) -> None:
    sys.stdout.write(text.rstrip("\n") + "\n")


def _json(value: Any) -> None:
    _write(json.dumps(value, indent=2, default=str, allow_nan=False))


TRAIN = """\
usage: probsa train --features DIR --labels CSV --model NAME --out RUN [--KEY VALUE ...]
       probsa train --config run.yaml --out RUN [--resume] [--KEY VALUE ...]

Trains a model, then predicts, evaluates and draws its held-out bags, all in the folder RUN.

  --out RUN          the run folder
  --config FILE      a run file; flags win over it
  --resume           go on after the last epoch that ended (the run file may be left out)
  --overwrite        remove the run that is there and start again
  --maps test|all|none   for which held-out bags to draw maps (default: test, or validation)
  --print_config     print the resolved run file with comments, and stop
  --json             one JSON document on standard output

Keys of a run file; as flags --data.KEY, --training.KEY, --model.KEY, or --KEY where it is unique:
"""

OWN = {
    "out": True,
    "config": True,
    "maps": True,
    "resume": False,
    "overwrite": False,
    "print_config": False,
    "json": False,
    "help": False,
}


def train(arguments: list[str]) -> int:
    """probsa train."""
    from .runfile import commented, described, flags_of, read_run
    from .runs import RunFolder

    if "-h" in arguments:
        arguments = [*(a for a in arguments if a != "-h"), "--help"]
    flags, own = flags_of(arguments, own=OWN)
    if own.get("help"):
        _write(TRAIN + "\n".join(described(flags.get("model.name", "abmil-probsa-diag"))))
        return 0
    out = Path(own["out"]) if "out" in own else None
    file = Path(own["config"]) if "config" in own else None
    if own.get("resume") and out is not None and file is None and not flags:
        config = RunFolder(out).config()
    else:
        config = read_run(file, flags)
    if own.get("print_config"):
        _write(commented(config))
        return 0
    if out is None:
        raise InputError("probsa train needs --out: the folder to write the run to")
    if own.get("maps", "test") not in ("test", "all", "none"):
        raise InputError(f"--maps is {own['maps']!r}: test, all or none")
    return _train(config, out, own)


def _train(config: Any, out: Path, own: dict[str, Any]) -> int:
    from .terminal import OUT, training_bar
    from .workflow import train_and_report

    with training_bar() as bar:
        done = train_and_report(
            config,
            out,
            resume=bool(own.get("resume")),
            overwrite=bool(own.get("overwrite")),
            maps=own.get("maps", "test"),
            reporter=bar,
        )
    if done is None:  # this process only helped: the first one reports
        return 0
    if own.get("json"):
        _json(done.to_dict())
    else:
        done.report.render(OUT)
        OUT.print(f"weights: of epoch {done.report.about.get('epoch')}, the best on validation")
        drawn = f", {done.maps} maps in {done.run.maps}" if done.maps else ""
        OUT.print(f"run: {done.run.path}{drawn}", markup=False)
    return _status(done.failures, as_json=bool(own.get("json")))


def _status(failures: list[tuple[str, str]], *, as_json: bool) -> int:
    if failures and not as_json:
        for bag, reason in failures:
            sys.stderr.write(f"probsa: left out {bag}: {reason}\n")
    return 1 if failures else 0


def predict(arguments: list[str]) -> int:
    """probsa predict."""
    parser = Parser(prog="probsa predict", description="Predicts every bag of a folder.")
    parser.add_argument("run", type=Path, help="folder of a training run, or a converted model")
    parser.add_argument("--features", type=Path, required=True, help="folder of feature files")
    parser.add_argument("--out", type=Path, required=True, help="folder for the predictions")
    parser.add_argument("--labels", type=Path, help="table of labels, to stand in the predictions")
    parser.add_argument("--checkpoint", choices=("best", "last"), default="best")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto")
    parser.add_argument("--overwrite", action="store_true", help="replace the predictions there")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from .terminal import OUT, counting
    from .workflow import predict_folder

    with counting("predicting") as count:
        done = predict_folder(
            a.run,
            a.features,
            out=a.out,
            labels=a.labels,
            checkpoint=a.checkpoint,
            device=a.device,
            overwrite=a.overwrite,
            on_bag=count,
        )
    failed = [{"bag": b, "reason": r} for b, r in done.failures]
    if a.json:
        _json({"predictions": str(done.folder), "bags": done.bags, "failed": failed})
    else:
        OUT.print(f"{done.bags} bags predicted: {done.folder / 'predictions.csv'}", markup=False)
    return _status(done.failures, as_json=a.json)


def evaluate(arguments: list[str]) -> int:
    """probsa evaluate."""
    parser = Parser(prog="probsa evaluate", description="Figures of a folder of predictions.")
    parser.add_argument("predictions", type=Path, help="folder that probsa predict wrote")
    parser.add_argument("--labels", type=Path, help="table bag,label[,group]")
    parser.add_argument("--classes", nargs="+", help="class names in order, where labels are names")
    parser.add_argument(
        "--part", choices=("auto", "test", "val", "train", "all"), default="auto",
        help="which bags: auto takes those that training never saw",
    )  # fmt: skip
    parser.add_argument("--bootstrap", type=int, default=2000, help="resamples of the intervals")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from .evaluation.report import evaluate as report
    from .terminal import OUT

    if a.bootstrap < 0 or 0 < a.bootstrap < 20:
        raise InputError(f"--bootstrap is {a.bootstrap}: 0 (no intervals) or at least 20")
    found = report(
        a.predictions,
        labels=a.labels,
        classes=a.classes,
        part=a.part,
        bootstrap=a.bootstrap,
        seed=a.seed,
    )
    if a.json:
        _json(found.to_dict())
    else:
        found.render(OUT)
    return 0


def map_(arguments: list[str]) -> int:
    """probsa map."""
    parser = Parser(prog="probsa map", description="Mean and variance of the attention, as PNG.")
    parser.add_argument("predictions", type=Path, help="folder that probsa predict wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    parser.add_argument("--bag", action="append", help="a bag (may be given again); default: all")
    parser.add_argument(
        "--scale", choices=("fixed", "per-bag"), default="per-bag",
        help="fixed: one colour scale for all bags; per-bag: from each bag's own range",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from .maps.render import render_folder
    from .terminal import OUT, counting

    with counting("drawing") as count:
        failures = render_folder(a.predictions, a.out, bags=a.bag, scale=a.scale, progress=count)
    if a.json:
        _json({"maps": str(a.out), "failed": [{"bag": b, "reason": r} for b, r in failures]})
    else:
        OUT.print(f"maps: {a.out}", markup=False)
    return _status(failures, as_json=a.json)


def models(arguments: list[str]) -> int:
    """probsa models."""
    parser = Parser(prog="probsa models", description="The models, or one model's arguments.")
    parser.add_argument("name", nargs="?", help="a model, to see its arguments")
    parser.add_argument("--markdown", action="store_true", help="the page docs/models.md")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from . import models as registry
    from .models import _catalogue
    from .terminal import OUT

    if a.markdown:
        OUT.print(_catalogue.markdown(), markup=False, soft_wrap=True, highlight=False, end="")
        return 0
    if a.name is None:
        rows = _catalogue.rows()
        shown = _catalogue.lines()
    else:
        found = registry.arguments(a.name)
        rows = {k: {"type": _type(p), "default": _default(p)} for k, p in found.items()}
        shown = [f"{k:<22} {v['type']} = {v['default']}" for k, v in rows.items()]
        shown = [f"{a.name}: {registry.summary(a.name)}", *shown]
    if a.json:
        _json(rows)
    else:
        OUT.print("\n".join(shown), markup=False, soft_wrap=True)
    return 0


def _type(parameter: Any) -> str:
    kind = parameter.annotation
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def _default(parameter: Any) -> Any:
    return "(required)" if parameter.default is parameter.empty else parameter.default


def convert_checkpoint(arguments: list[str]) -> int:
    """probsa convert-checkpoint."""
    parser = Parser(
        prog="probsa convert-checkpoint",
        description="Original weights of a published method, as a model that probsa predict takes.",
    )
    parser.add_argument("file", type=Path, help="state dict: .pt, .pth, .ckpt or .safetensors")
    parser.add_argument("--reference", required=True, help="which original: clam_sb, dsmil, …")
    parser.add_argument("--out", type=Path, required=True, help="the .safetensors file to write")
    parser.add_argument(
        "--argument", action="append", default=[], metavar="NAME=VALUE",
        help="of the original's constructor, under its name (k_sample=8); may be given again",
    )  # fmt: skip
    parser.add_argument("--classes", nargs="+", help="class names in the order of their indices")
    parser.add_argument("--overwrite", action="store_true", help="replace the file there")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from . import conversion
    from .terminal import OUT

    wrong = [text for text in a.argument if "=" not in text]
    if wrong:
        raise InputError(f"--argument is {wrong[0]!r}: expected NAME=VALUE, as in k_sample=8")
    model = conversion.convert_checkpoint(
        a.file,
        a.out,
        reference=a.reference,
        arguments=dict(text.split("=", 1) for text in a.argument),
        classes=a.classes,
        overwrite=a.overwrite,
    )
    if a.json:
        _json({"file": str(a.out), "model": model.name, "arguments": model.arguments})
    else:
        OUT.print(f"{model.name}, {model.arguments}: {a.out}", markup=False)
    return 0


def demo(arguments: list[str]) -> int:
    """probsa demo."""
    parser = Parser(prog="probsa demo", description="The whole flow on handwritten digits.")
    parser.add_argument("--out", type=Path, default=Path("probsa-demo"), help="where to write")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from .demo import run_demo
    from .terminal import OUT, training_bar

    with training_bar() as bar:
        result = run_demo(a.out, reporter=bar)
    if a.json:
        _json(result.to_dict())
    else:
        result.render(OUT)
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "predict": predict,
    "evaluate": evaluate,
    "map": map_,
    "models": models,
    "convert-checkpoint": convert_checkpoint,
    "demo": demo,
}
