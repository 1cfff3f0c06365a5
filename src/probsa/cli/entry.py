"""The command line. Exit status: 0 done; 1 some of many items failed; 2 wrong usage or input."""

import json
import sys
from collections.abc import Sequence
from importlib import import_module

from ..errors import ProbSAError, UnknownName
from .commands._shared import write

FLOW = """\
The flow:

   1 slide              slides, DICOM, NIfTI   probsa info
   2 patches            tissue, coordinates    probsa patch
   3 features           bags                   probsa extract, probsa convert
   4 graph, 5 bags      stored bags, labels    read by every command below
   6 model              Bags -> Output         probsa models
   7 objective, 8 training                     probsa train
   9 evaluation         predictions, figures   probsa predict, probsa evaluate
  10 maps               mean and variance      probsa map
     many runs          tables and figures     probsa benchmark

commands:
  info       what is understood of a slide or a scan, and what is missing
  patch      slides or studies to a work folder of patches or slices
  extract    the patches of a work folder to features, one bag a slide
  convert    bags of CLAM, TRIDENT, STAMP, slideflow or torchmil as files of another tool
  verify     what is wrong with a work folder or a folder of features, and what to do
  dataset    RSNA, PANDA, CAMELYON16 or a cohort made ready: labels, parts, labels of patches
  train      train a model on a folder of features and a table of labels
  predict    predict a folder of features with a trained run
  evaluate   figures of a folder of predictions
  map        pictures of where the evidence is and how sure the model is
  benchmark  a grid of models, data sets, splits, seeds and λ, with its tables and figures
  models     the models, or one model's arguments
  encoders   the encoders, their licences and what they need
  doctor     what is installed here, and what works
  convert-checkpoint   the weights of a published method's own code, for predict
  demo       all of it on handwritten digits, in a minute, without any file

`probsa COMMAND --help` says more. Every command takes --json.
"""

COMMANDS = (
    "info",
    "patch",
    "extract",
    "convert",
    "verify",
    "dataset",
    "train",
    "predict",
    "evaluate",
    "map",
    "benchmark",
    "models",
    "encoders",
    "doctor",
    "convert-checkpoint",
    "demo",
)
"""Each is the module of `commands` that bears its name."""


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
            write(json.dumps({"error": said, "kind": type(e).__name__}))
        sys.stderr.write(f"probsa: error: {said}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("probsa: stopped\n")
        return 130


def _dispatch(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        write(f"usage: probsa COMMAND ...\n\n{FLOW}")
        return 0
    if given[0] == "--version":
        from .. import __version__

        write(__version__)
        return 0
    if given[0] not in COMMANDS:
        raise UnknownName("command", given[0], COMMANDS)
    module = import_module(f".commands.{given[0].replace('-', '_')}", __package__)
    return module.run(given[1:])
