"""Altered inputs of every kind end in a sentence: no traceback, no hang, nothing left behind.

Hypothesis alters one file of a folder and runs what users would run on it. A few cases of each kind
of input are tried by default, always the same; many, and others each time, in the nightly run.
"""

import os
import resource
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz.alterations import BYTES, OF_SUFFIX, Array, Header, Value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.subjects import SUBJECTS, Outcome, Subject, same

NIGHTLY = os.environ.get("PROBSA_TEST_SHAPES") == "all"
EXAMPLES = int(os.environ.get("PROBSA_FUZZ_EXAMPLES", 200 if NIGHTLY else 15))
"""Cases of each kind of input."""
SECONDS = 15
ADDRESSES = 3 * 10**9
"""Bytes of addresses that a case may take beyond those in use."""
BY_NAME = {subject.name: subject for subject in SUBJECTS}


class TooLong(BaseException):
    """A case took too long; no reader catches it."""


class Bench:
    """The unaltered folders and their results, made when they are first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[str, tuple[Path, Outcome]] = {}

    def base(self, subject: Subject) -> tuple[Path, Outcome]:
        """Return the unaltered folder of a subject, and what is read of it."""
        if subject.name not in self._made:
            folder = self.folder / str(len(self._made))
            folder.mkdir()
            subject.build(folder)
            outcome = subject.drive(*self.copied(folder))
            assert outcome.status == 0, outcome.text
            self._made[subject.name] = folder, outcome
        return self._made[subject.name]

    def copied(self, base: Path) -> tuple[Path, Path]:
        """Return a copy of a folder, and a path to write to, where nothing is."""
        case = self.folder / "case"
        out = self.folder / "out"
        for left in (case, out):
            shutil.rmtree(left, ignore_errors=True)
        return Path(shutil.copytree(base, case)), out

    def check(self, subject: Subject, file: str, alter: Callable[[Path], None]) -> None:
        """Alter a file of a copy of a subject's folder, read the folder, and judge."""
        base, unaltered = self.base(subject)
        case, out = self.copied(base)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # some files cannot be altered in some ways
            with suppress(Exception):
                alter(case / file)
        before = set(case.rglob("*"))
        with limits(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as the command does; the tests make errors of them
            outcome = subject.drive(case, out)
        told(outcome)
        beside = [*out.parent.glob(f".{out.name}*"), *out.rglob(".*.tmp")]
        assert not {*case.rglob("*")} - before and not beside, "files were left behind"
        if outcome.status == 2:
            assert not out.exists() or not any(p.is_file() for p in out.rglob("*.*")), "an output"
        well_formed(outcome, unaltered, altered=Path(file))


def told(outcome: Outcome) -> None:
    """Check that a command ended with a message or a result."""
    text = outcome.text
    assert outcome.status in (0, 1, 2), text
    assert "Traceback (most recent" not in text and "allocate" not in text.lower(), text
    if outcome.status == 2:
        assert "probsa: error:" in text or '"error"' in text, text


def well_formed(outcome: Outcome, unaltered: Outcome, *, altered: Path) -> None:
    """Check that accepted arrays are finite as before, and results of other bags are the same."""
    if outcome.status == 2:
        return
    of_one = altered.name.partition(".")[0]
    for name, result in outcome.results.items():
        whole = unaltered.results.get(name)
        if not isinstance(result, dict) or not isinstance(whole, dict):
            continue
        if of_one in unaltered.results and name != of_one:
            assert same(result, whole), f"{name} changed"
        for key in result.keys() & whole.keys():
            if isinstance(result[key], np.ndarray) and result[key].dtype.kind == "f":
                finite = np.isfinite(result[key]).all()
                assert finite or not np.isfinite(whole[key]).all(), f"{key} of {name}"


@contextmanager
def limits() -> Iterator[None]:
    """Limit the time and the memory of what is done inside."""

    def ring(*_: object) -> None:
        raise TooLong(f"more than {SECONDS} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    former = signal.signal(signal.SIGALRM, ring)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ADDRESSES, hard))
    # again and again, as a callback from C may swallow the first
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Bench:
    return Bench(tmp_path_factory.mktemp("fuzz"))


def alterations(files: list[str]) -> st.SearchStrategy[tuple[str, Any]]:
    """Return a strategy of (file, alteration); what a file holds is altered more often."""

    def of_file(file: str) -> st.SearchStrategy[tuple[str, Any]]:
        own = OF_SUFFIX.get(Path(file).suffix, BYTES)
        return st.tuples(st.just(file), st.one_of(own, own, BYTES))

    return st.sampled_from(files).flatmap(of_file)


@pytest.mark.parametrize("name", BY_NAME)
def test_no_altered_input_breaks_a_command(bench, name):
    subject = BY_NAME[name]
    folder, _ = bench.base(subject)
    found = {p for pattern in subject.files for p in folder.glob(pattern) if p.is_file()}
    files = sorted(str(path.relative_to(folder)) for path in found)

    @settings(
        max_examples=EXAMPLES,
        derandomize=not NIGHTLY,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(alterations(files))
    def holds(case: tuple[str, Any]) -> None:
        bench.check(subject, *case)

    holds()


FOUND = {
    "infinity in JSON": (
        "predictions",
        "predictions/faithfulness.json",
        Value(("bags", "000", "least_first", "shown", 3), float("inf")),
    ),
    "a size in an archive": ("run", "run/training_distance.npz", Header(0, {"shape": (10**12,)})),
    "a size in an index": ("bags, slideflow", "s1.index.npz", Header(0, {"shape": (10**8, 64)})),
    "infinite places in an index": ("bags, slideflow", "s0.index.npz", Array(0, "infinite")),
    "infinite places of tiles": ("bags, stamp", None, Array(0, "infinite")),
    "infinite places of patches": ("bags, trident", None, Array(0, "infinite")),
    "unsigned coordinates": ("bags, trident", None, Array(0, "u8")),
    "no number in a header": ("bags, torchmil", None, Header(0, {"fortran_order": None})),
}
"""Alterations that broke a command once; those of single readers are in their own tests."""


@pytest.mark.parametrize("kind", FOUND)
def test_what_was_found_once_is_refused_or_left_out(bench, kind):
    name, file, alter = FOUND[kind]
    subject = BY_NAME[name]
    folder, _ = bench.base(subject)
    found = sorted(path for pattern in subject.files for path in folder.glob(pattern))
    bench.check(subject, file or str(found[0].relative_to(folder)), alter)
