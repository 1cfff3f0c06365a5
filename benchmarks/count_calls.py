"""Count the functions of the package that a training run calls before and in a step of a model.

    python benchmarks/count_calls.py [--list] [MODEL ...]    # default: abmil-probsa-diag

Set-up reaches from the flags of `probsa train` to the first step. The step is the second one, in
which nothing is cached for the first time. Functions are counted once however often they are
called; lambdas and comprehensions are not counted. `--list` prints the functions of the step.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType

import probsa
from probsa.cli.entry import main as command_line
from probsa.datasets import write_digit_slides

PACKAGE = str(Path(probsa.__file__).parent)
STEP = (f"{PACKAGE}/training/", ".step")  # file and name of the function that takes a step
FUNCTION = 0x1  # flag of the code of a function, not of a module or class


class StepDone(BaseException): ...


@contextmanager
def called(functions: dict[str, set[CodeType]]) -> Iterator[None]:
    """Collect the code objects of the package that are called, in `setup` and in `step`."""
    steps = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal steps
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return
        is_step = code.co_filename.startswith(STEP[0]) and code.co_qualname.endswith(STEP[1])
        if event == "return" and is_step and steps == 2:
            raise StepDone
        if event != "call":
            return
        steps += is_step
        if steps != 1 and code.co_flags & FUNCTION and not code.co_name.startswith("<"):
            functions["step" if steps else "setup"].add(code)

    sys.setprofile(profile)
    try:
        with suppress(StepDone):
            yield
    finally:
        sys.setprofile(None)


def main() -> None:
    """Print a table of the numbers of functions and files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["abmil-probsa-diag"], metavar="MODEL")
    parser.add_argument("--list", action="store_true", help="Print the functions of the step.")
    given = parser.parse_args()
    print(f"{'model':28}{'part':8}{'functions':>10}{'files':>8}")
    for model in given.models:
        functions: dict[str, set[CodeType]] = {"setup": set(), "step": set()}
        with tempfile.TemporaryDirectory() as name:
            data = Path(name)
            write_digit_slides(data, bags=20, seed=0)
            paths = ["--features", f"{data}/features", "--labels", f"{data}/labels.csv"]
            flags = [*paths, "--batch-size", "4", "--out", f"{data}/run"]
            with called(functions):
                command_line(["train", "--model", model, *flags])
        for part, codes in functions.items():
            print(f"{model:28}{part:8}{len(codes):10}{len({c.co_filename for c in codes}):8}")
        for code in sorted(functions["step"], key=lambda c: c.co_filename) if given.list else ():
            print(f"    {code.co_filename.removeprefix(PACKAGE)[1:]}: {code.co_qualname}")


if __name__ == "__main__":
    main()
