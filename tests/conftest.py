"""What every test may use: the real data and the reference outputs where they are, one thread."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# Threads that wait do so asleep: commands set their own number of threads, and on small tensors
# these would spend most of the time of the processor waiting for one another.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import jaxtyping
import pytest
import torch

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent

SHAPES = os.environ.get("PROBSA_TEST_SHAPES") == "all"
"""Whether shapes and types of arguments are checked, as in the nightly run: twice as long."""

LONG = (
    "fuzz",
    "system",
    "cohorts",
    "workflow",
    "benchmark",
    "jobs",
    "cli",
    "docs",
    "models",
    "training",
    "view",
    "features",
    "evaluation",
)
"""Folders with long tests, which start first: otherwise one process waits for the last of them."""

MANY = {
    "maps/test_compare.py": 3,
    "maps/test_draw.py": 3,
    "models/test_argument_limits.py": 7,
    "system/test_faults.py": 7,
    "exports/test_values.py": 5,
    "system/test_links_as_output.py": 3,
}
"""Files with many cases of one kind: every so many of them run, and all in the nightly run."""

DRAWN = (
    "benchmark/test_figures.py",
    "cli/test_demo.py",
    "docs/test_tutorials.py",
    "evaluation/test_report.py",
    "exports",
    "maps",
    "system/test_attention_by_class.py",
    "system/test_end_to_end.py",
    "system/test_from_pixels.py",
    "view",
)
"""Folders and files whose tests look at pictures. Elsewhere these are blank by default."""

# Two threads on small tensors cost more than they bring.
torch.set_num_threads(1)

if SHAPES:
    jaxtyping.install_import_hook("probsa", "beartype.beartype")


def _beside(name: str) -> Path:
    given = os.environ.get("PROBSA_TEST_DATA")
    if given and name == "data":
        return Path(given)
    return ROOT.parent / "shared" / name


def _waits_for_the_night(item: pytest.Item, cases: Counter[str]) -> bool:
    """Count the case of a test; return whether only the nightly run has it."""
    every = MANY.get(item.path.relative_to(TESTS).as_posix(), 1)
    test = item.nodeid.partition("[")[0]
    cases[test] += 1
    is_left_out = (cases[test] - 1) % every > 0 or item.get_closest_marker("nightly") is not None
    return is_left_out and not SHAPES


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag that writes the texts of commands anew."""
    parser.addoption("--update-snapshots", action="store_true", help="write tests/cli/snapshots")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what only the nightly run has; start with the folders of `LONG`, in their order."""
    cases: Counter[str] = Counter()
    later = [item for item in items if _waits_for_the_night(item, cases)]
    if later and len(later) < len(items):  # a case that is asked for by name is the first
        config.hook.pytest_deselected(items=later)
        items[:] = [item for item in items if item not in set(later)]
    place = {name: k for k, name in enumerate(LONG)}
    items.sort(key=lambda i: place.get(i.path.relative_to(TESTS).parts[0], len(LONG)))


def pytest_sessionstart() -> None:
    """In the nightly run, make sure that the package's shapes and types are checked."""
    if SHAPES:
        from probsa.core import segment_sum

        with pytest.raises(jaxtyping.TypeCheckError):
            segment_sum(torch.ones(3, dtype=torch.int64), (1, 2))


@pytest.fixture(scope="module", autouse=True)
def _pictures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Draw no pictures for tests that do not look at them; the nightly run draws all."""
    from support.blank_pictures import use_blank_pictures

    with pytest.MonkeyPatch.context() as patch:
        if not SHAPES and not request.path.relative_to(TESTS).as_posix().startswith(DRAWN):
            use_blank_pictures(patch)
        yield


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    """What a test draws does not depend on the tests before it, or on the day."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # a stage of jobs sets the number of its process


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real slides, scans and bags, which are not part of the project."""
    folder = _beside("data")
    if not folder.is_dir():
        pytest.skip("the shared real data are not beside this checkout (or at PROBSA_TEST_DATA)")
    return folder


@pytest.fixture(scope="session")
def shared_paper() -> Path:
    """The source of the paper and the numbers of its tables."""
    folder = _beside("paper")
    if not folder.is_dir():
        pytest.skip("the paper's source is not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def shared_golden() -> Path:
    """Inputs, weights and outputs of the original implementations."""
    folder = _beside("golden")
    if not folder.is_dir():
        pytest.skip("the reference outputs are not beside this checkout")
    return folder
