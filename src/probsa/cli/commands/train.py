"""probsa train."""

import json
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ...errors import InputError
from ..command import Answer, Flag
from ._keys import RunKeys

if TYPE_CHECKING:
    from ...training import Demands, RunConfig

KEYS = RunKeys(
    usage="""\
probsa train --features DIR --labels CSV --out RUN [--model NAME] [--KEY VALUE ...]
       probsa train --config run.yaml --out RUN [--KEY VALUE ...]
       probsa train --out RUN --resume""",
    with_recipe=True,
    short=(
        "features",
        "labels",
        "out",
        "model",
        "classes",
        "task",
        "test_fold",
        "epochs",
        "learning_rate",
        "members",
        "threshold",
        "instance_labels",
        "config",
        "maps",
        "resume",
        "overwrite",
    ),
)
PLAIN: dict[str, Any] = {"markup": False, "soft_wrap": True, "highlight": False}
"""How sentences are printed."""


def run(
    *,
    out: Annotated[Path, Flag("RUN")] | None = None,
    config: Annotated[Path, Flag("FILE")] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    maps: Literal["test", "all", "none"] = "test",
    full: bool = False,
    dry_run: bool = False,
    print_config: bool = False,
    print_schema: bool = False,
    **keys: str,
) -> Answer | None:
    """Train a model on a folder of features and a table of labels.

    The run folder gets the weights, the predictions for the held-out bags, their evaluation
    and their attention maps. Every key of a run file is a flag too, written with its section
    (--training.epochs 50) or without (--epochs 50). Flags take precedence over the run file.
    `probsa train --help` lists the flags that are needed most, and --help-all lists all of them.

    Without --model, the defaults are those of the default recipe (recipes/default.yaml).
    With --model NAME, they are those of the ProbSA paper (recipes/paper.yaml).

    The arguments of a model are keys as well: `probsa train --model NAME --help` or
    `probsa models NAME` lists them.

    Args:
        out: Run folder to write. Required.
        config: Run file to read, or the name of a recipe: default, paper, …
        resume: Continue the run in --out after its last finished epoch, with its own settings.
            Maps that are drawn already are kept.
        overwrite: Delete an existing run folder and start again.
        maps: Held-out bags to draw attention maps for: the first 12 of the test part (of the
            validation part if there is none), all of both parts, or none. probsa map draws others.
        full: Print the whole report instead of its summary.
        dry_run: Check the run and its data, estimate from a few steps how long training will take,
            and exit. Writes nothing.
        print_config: Print the complete run file with comments, and exit.
        print_schema: Print the JSON schema of this model's run file (without a model: of one that
            names none), and exit.

    Model:
        model: Registered name; see `probsa models`. Default: the default recipe, with
            evidence-field.
    """
    # what is wrong with names, paths and tables is said before PyTorch is imported
    from ...training import (
        RunFolder,
        check_files,
        check_run_output,
        check_settings,
        find_recipe,
        given_run,
        names_model,
    )

    if print_schema:
        from ...training import run_schema

        schema = run_schema(keys.get("model.name"))
        return Answer(schema, json.dumps(schema, indent=2))
    note = ""
    if config is not None:
        config = find_recipe(config)
    names_data = {"data.features", "data.labels"} <= keys.keys()
    stored = resume and out is not None and config is None and not names_data
    if out is None and not (print_config or dry_run):
        raise InputError("probsa train needs --out: the folder to write the run to")
    if out is not None and not (print_config or dry_run):
        check_run_output(out, resume=resume, overwrite=overwrite)
    requested = None if stored else given_run(config, keys)
    if out is not None and requested is None:
        check_settings(RunFolder(out), keys)
        data = RunFolder(out).config().data
    else:
        assert requested is not None
        data = requested.data()
    if not print_config:
        check_files(data)
    from ...training import CHOSEN, commented, read_run, recipe_sentence, without_prior

    if out is not None and stored:
        chosen = RunFolder(out).config()
    else:
        given = read_run(config, keys)
        chosen = without_prior(given)
        if chosen is not given:
            note = f"kl_weight is 0: training {chosen.model}, {given.model} without its prior"
        elif not names_model(config, keys):
            note = recipe_sentence(chosen)
    if print_config:
        text = commented(chosen)
        return Answer(text, text)
    if dry_run:
        return _dry_run(chosen)
    assert out is not None
    from ...core import counted
    from ...training import read_split
    from ...workflow import train_and_report
    from ..terminal import TrainingBar

    with TrainingBar() as bar:
        trained = train_and_report(
            chosen, out, resume=resume, overwrite=overwrite, maps=maps, reporter=bar, note=note
        )
    if trained is None:  # only the first of several processes reports
        return None

    def render(console: Any) -> None:
        metadata = trained.report.metadata
        seconds = timedelta(seconds=round(trained.run.seconds()))
        epoch = metadata.epoch
        epochs = f"epoch {epoch}"
        if isinstance(epoch, tuple):
            epochs = f"epochs {', '.join(map(str, epoch))}"
        weights = CHOSEN[chosen.training.select].format(epochs)
        if "C" in metadata.more:
            weights = f"fitted in one go, with C = {metadata.more['C']}"
        members = chosen.training.members
        several = f", {members} members" if members > 1 else ""
        bags = counted(len(read_split(trained.run).train), "bag")
        model = f"{chosen.model}{several}, on {bags} in {seconds}"
        console.print(f"trained: {model}; weights: {weights}", **PLAIN)
        trained.report.render(console, full=full)
        maps = f", {counted(trained.maps, 'map')} in {trained.run.maps}" if trained.maps else ""
        console.print(f"run: {trained.run.path}{maps}", **PLAIN)

    return Answer(trained.to_dict(), render, trained.failures)


def _dry_run(config: "RunConfig") -> Answer:
    from ...core import counted
    from ...models import look_up
    from ...training import (
        choose_device,
        demands_of,
        describe_data,
        epoch_seconds,
        prepare,
        reading_speed,
    )
    from ..terminal import TrainingBar, duration

    prepared = prepare(config)
    describe_data(prepared, TrainingBar())
    speed = reading_speed(prepared)
    step_seconds = None
    if not look_up(config.model).model.fits_directly:
        step_seconds = epoch_seconds(config, prepared)
    demands = demands_of(
        prepared,
        device=choose_device(config.training.device),
        speed=speed,
        step_seconds=step_seconds,
    )
    epochs = config.training.epochs * config.training.members
    seconds = demands.run_seconds(epochs)
    training = "fitted in one go"
    if seconds is not None:
        training = duration(epochs, seconds / epochs)
        seconds = round(seconds, 1)
    parts = prepared.split
    counts = {
        "training_bags": len(parts.train),
        "validation_bags": len(parts.val),
        "test_bags": len(parts.test),
    }
    test = counted(len(parts.test), "test bag") if parts.test else "no test bags"
    lines = (
        f"{config.model}: {counted(len(parts.train), 'training bag')}, "
        f"{counted(len(parts.val), 'validation bag')}, {test}",
        *_demand_lines(demands),
        f"training: {training}, on this machine as busy as it is now; predicting, evaluating and "
        "maps follow",
    )
    document = {**counts, "seconds": seconds, "data": _demand_facts(demands)}
    return Answer(document, "\n".join(lines))


def _demand_facts(demands: "Demands") -> dict[str, Any]:
    """Return what `--json` has of the demands of a run."""
    return {
        "instances": demands.instances,
        "features": demands.features,
        "bytes_per_value": demands.speed.bytes_per_value,
        "epoch_gb": demands.epoch_gb,
        "cached_share": demands.cached_share,
        "edge_weights_gb": demands.weights_gb,
        "graphs_every_epoch": demands.remakes_graphs,
        "device_share": demands.device_share,
        "read_gb_per_second": demands.speed.bytes_per_second / 1e9,
        "reading_seconds": demands.reading_seconds,
        "graph_seconds": demands.graph_seconds,
        "step_seconds": demands.step_seconds,
        "advice": demands.advice,
    }


def _demand_lines(demands: "Demands") -> list[str]:
    """Return the demands of a run in words."""
    from ...core import counted

    bits = 8 * demands.speed.bytes_per_value
    graphs = "the edge weights of all graphs"
    if demands.remakes_graphs:
        graphs = f"some of the edge weights ({demands.weights_gb:.3g} GB)"
    lines = [
        f"data: {counted(demands.instances, 'instance')} of "
        f"{counted(demands.features, 'feature')} in {bits} bits, {demands.epoch_gb:.3g} GB per "
        "epoch",
        f"memory: cache_gb {demands.cache_gb:g} holds {graphs} and {demands.cached_share:.0%} of "
        "the features",
    ]
    if demands.device_gb is not None:
        lines.append(
            f"device: {demands.device_gb:.3g} GB are free, as much as {demands.device_share:.0%} "
            "of the features need"
        )
    steps = ""
    if demands.step_seconds is not None:
        steps = f", steps {demands.step_seconds:.3g} s"
    lines.append(
        f"an epoch: reading {demands.reading_seconds:.3g} s at "
        f"{demands.speed.bytes_per_second / 1e9:.2g} GB/s{steps}; graphs are made in "
        f"{demands.graph_seconds:.3g} s, {'every time' if demands.remakes_graphs else 'once'}"
    )
    if demands.advice is not None:
        lines.append(f"advice: reading takes longer than the steps. {_advice(demands)}")
    return lines


def _advice(demands: "Demands") -> str:
    """Return what to do about an epoch that reads for longer than it computes."""
    advice = demands.advice
    if advice == "larger_cache":
        return f"Keep all bags in memory: --cache-gb {ceil(demands.wanted_cache_gb)}"
    if advice == "cache_for_graphs":
        return f"Keep the edge weights: --cache-gb {ceil(demands.weights_gb)} or more"
    if advice == "half_precision":
        return "Extract the features with --dtype float16, which halves them"
    return "Read in several processes: --workers 4"
