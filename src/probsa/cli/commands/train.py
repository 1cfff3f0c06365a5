"""probsa train: a run file or flags to a run folder."""

from pathlib import Path
from typing import Any

from ...errors import InputError
from ._shared import status, write, write_json

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


def run(arguments: list[str]) -> int:
    """probsa train."""
    from ...training import RunFolder, commented, described, flags_of, read_run

    if "-h" in arguments:
        arguments = [*(a for a in arguments if a != "-h"), "--help"]
    flags, own = flags_of(arguments, own=OWN)
    if own.get("help"):
        write(TRAIN + "\n".join(described(flags.get("model.name", "abmil-probsa-diag"))))
        return 0
    out = Path(own["out"]) if "out" in own else None
    file = Path(own["config"]) if "config" in own else None
    if own.get("resume") and out is not None and file is None and not flags:
        config = RunFolder(out).config()
    else:
        config = read_run(file, flags)
    if own.get("print_config"):
        write(commented(config))
        return 0
    if out is None:
        raise InputError("probsa train needs --out: the folder to write the run to")
    if own.get("maps", "test") not in ("test", "all", "none"):
        raise InputError(f"--maps is {own['maps']!r}: test, all or none")
    return _train(config, out, own)


def _train(config: Any, out: Path, own: dict[str, Any]) -> int:
    from ...workflow import train_and_report
    from ..terminal import OUT, training_bar

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
        write_json(done.to_dict())
    else:
        done.report.render(OUT)
        OUT.print(f"weights: of epoch {done.report.metadata.get('epoch')}, the best on validation")
        drawn = f", {done.maps} maps in {done.run.maps}" if done.maps else ""
        OUT.print(f"run: {done.run.path}{drawn}", markup=False)
    return status(done.failures, as_json=bool(own.get("json")))
