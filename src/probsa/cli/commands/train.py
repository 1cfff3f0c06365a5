"""probsa train: train a model from a run file or from flags, and evaluate it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from ...errors import InputError
from ._run_flags import add_keys, add_run_flags, parse_with_run_flags
from ._shared import add_json_flag, command_parser, exit_status, write, write_json

if TYPE_CHECKING:
    from ...training import RunConfig

DESCRIPTION = """\
Train a model on a folder of features and a table of labels.

The run folder gets the weights, the predictions for the held-out bags, their evaluation
and their attention maps. Every key of a run file is a flag too, written with its section
(--training.epochs 50) or without (--epochs 50). Flags take precedence over the run file.

Without --model, the defaults are those of the default recipe (recipes/default.yaml).
With --model NAME, they are those of the ProbSA paper (recipes/paper.yaml).

The arguments of a model are keys as well: `probsa train --model NAME --help` or
`probsa models NAME` lists them."""
USAGE = """\
probsa train --features DIR --labels CSV --out RUN [--model NAME] [--KEY VALUE ...]
       probsa train --config run.yaml --out RUN [--KEY VALUE ...]
       probsa train --out RUN --resume"""


CHOSEN = {
    "auroc": "those of {}, the best on the validation bags",
    "nll": "those of {}, with the lowest validation NLL",
    "ema-nll": "the running average at {}, with the lowest validation NLL",
    "last": "those of {}, the last",
}
"""Which weights a run keeps, by its `select`."""


def own_parser() -> ArgumentParser:
    """Return the parser of the arguments that are not keys of a run."""
    parser = command_parser("train", DESCRIPTION)
    add = parser.add_argument
    add("--out", type=Path, metavar="RUN", help="Run folder to write. Required.")
    add(
        "--config", type=Path, metavar="FILE",
        help="Run file to read, or the name of a recipe: default, paper, …",
    )  # fmt: skip
    add(
        "--resume", action="store_true",
        help="Continue after the last finished epoch. Needs no run file.",
    )  # fmt: skip
    add("--overwrite", action="store_true", help="Delete an existing run folder and start again.")
    add(
        "--maps", choices=("test", "all", "none"), default="test",
        help="Held-out bags to draw attention maps for: those of the test part (of the validation "
        "part if there is none), of both parts, or none. Default: test.",
    )  # fmt: skip
    add(
        "--dry-run", action="store_true",
        help="Check the run and its data, estimate from a few steps how long training will take, "
        "and exit. Writes nothing.",
    )  # fmt: skip
    add(
        "--print-config", action="store_true",
        help="Print the complete run file with comments, and exit.",
    )  # fmt: skip
    add(
        "--print-schema", action="store_true",
        help="Print the JSON schema of this model's run file (without a model: of one that names "
        "none), and exit.",
    )  # fmt: skip
    add_json_flag(parser)
    return parser


def parser(*, model_named: bool = False) -> ArgumentParser:
    """Return the whole parser, for help and shell completion.

    Args:
        model_named: whether the help is that of a model, without the default recipe.
    """
    from ...training import default_recipe

    recipe = default_recipe()
    whole = own_parser()
    whole.usage = USAGE
    names = whole.add_argument_group("model")
    names.add_argument(
        "--model", metavar="NAME",
        help="Registered name; see `probsa models`. Default: the default recipe, with "
        f"{recipe['model.name']}.",
    )  # fmt: skip
    add_run_flags(whole, recipe={} if model_named else recipe)
    return whole


def run(arguments: Sequence[str]) -> int:
    """Run `probsa train`."""
    if {"-h", "--help"} & set(arguments):
        write(_help(arguments))
        return 0
    own, flags = parse_with_run_flags(own_parser(), arguments)
    from ...training import (
        RunFolder,
        commented,
        find_recipe,
        names_model,
        read_run,
        recipe_sentence,
        run_schema,
        without_prior,
    )

    if own.print_schema:
        write_json(run_schema(flags.get("model.name")))
        return 0
    note = None
    if own.config is not None:
        own.config = find_recipe(own.config)
    if own.resume and own.out is not None and own.config is None and not flags:
        config = RunFolder(own.out).config()
    else:
        given = read_run(own.config, flags)
        config = without_prior(given)
        if config is not given:
            note = f"kl_weight is 0: training {config.model}, {given.model} without its prior"
        elif not names_model(own.config, flags):
            note = recipe_sentence(config)
    if own.print_config:
        write(commented(config))
        return 0
    if own.dry_run:
        return _dry_run(config, own)
    if own.out is None:
        raise InputError("probsa train needs --out: the folder to write the run to")
    return _train(config, own, note=note)


def _help(arguments: Sequence[str]) -> str:
    """Return the help; with `--model NAME`, the arguments of this model are in it."""
    try:
        others = [a for a in arguments if a not in ("-h", "--help")]
        _, flags = parse_with_run_flags(own_parser(), others)
    except InputError:  # show help even if the arguments are not valid yet
        flags = {}
    whole = parser(model_named="model.name" in flags)
    if "model.name" in flags:
        from ...training import run_keys

        group = whole.add_argument_group(f"arguments of the model {flags['model.name']}")
        keys = run_keys(flags["model.name"], flags.get("model.preset", "paper"))
        add_keys(group, [k for k in keys.values() if k.name.startswith("model.")][1:])
    return whole.format_help()


def _dry_run(config: "RunConfig", own: Namespace) -> int:
    from ...models import look_up
    from ...training import epoch_seconds, prepare
    from ..terminal import duration

    prepared = prepare(config)
    epochs = config.training.epochs * config.training.members
    directly = look_up(config.model).model.fits_directly
    epoch = None if directly else epoch_seconds(config, prepared)
    train, val = len(prepared.split.train), len(prepared.split.val)
    if own.json:
        seconds = None if epoch is None else round(epochs * epoch, 1)
        write_json({"training_bags": train, "validation_bags": val, "seconds": seconds})
        return 0
    write(f"{config.model}: {train} training bags, {val} validation bags")
    write("training: fitted in one go" if epoch is None else f"training: {duration(epochs, epoch)}")
    return 0


def _train(config: "RunConfig", own: Namespace, *, note: str | None) -> int:
    from ...core import counted
    from ...workflow import train_and_report
    from ..terminal import OUT, training_bar

    with training_bar() as bar:
        if note is not None and int(os.environ.get("RANK", "0")) == 0:
            bar.note(note)
        trained = train_and_report(
            config,
            own.out,
            resume=own.resume,
            overwrite=own.overwrite,
            maps=own.maps,
            reporter=bar,
        )
    if trained is None:  # only the first of several processes reports
        return 0
    if own.json:
        write_json(trained.to_dict())
    else:
        trained.report.render(OUT)
        epoch = trained.report.metadata.get("epoch")
        epochs = ", ".join(map(str, epoch)) if isinstance(epoch, list) else epoch
        which = "epochs" if isinstance(epoch, list) else "epoch"
        if "C" in trained.report.metadata:
            OUT.print(f"weights: fitted in one go, with C = {trained.report.metadata['C']}")
        else:
            OUT.print(f"weights: {CHOSEN[config.training.select].format(f'{which} {epochs}')}")
        maps = f", {counted(trained.maps, 'map')} in {trained.run.maps}" if trained.maps else ""
        OUT.print(f"run: {trained.run.path}{maps}", markup=False)
    return exit_status(trained.failures, as_json=own.json)
