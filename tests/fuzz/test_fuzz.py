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
from dataclasses import dataclass
from pathlib import Path

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


Alteration = Callable[[Path], None]


@dataclass(frozen=True, kw_only=True)
class Regression:
    """An alteration that broke a command once."""

    subject: str
    file: str | None
    """The altered file in the subject's folder; None: the first of the subject's files."""
    alter: Alteration


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

    def check(self, subject: Subject, file: str, alter: Alteration) -> None:
        """Alter a file of a copy of a subject's folder, read the folder, and judge.

        Errors of the alteration itself are raised.
        """
        base, unaltered = self.base(subject)
        case, out = self.copied(base)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            alter(case / file)
        before = set(case.rglob("*"))
        with limits(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as the command does; the tests make errors of them
            outcome = subject.drive(case, out)
        told(outcome)
        added = set(case.rglob("*")) - before
        temporary = [*out.parent.glob(f".{out.name}*"), *out.rglob(".*.tmp")]
        assert not added, "files were left in the folder that was read"
        assert not temporary, "temporary files were left behind"
        if outcome.status == 2 and out.exists():
            # every result has a suffix; locks and ledgers, which may stay, have none
            results = [path for path in out.rglob("*.*") if path.is_file()]
            assert not results, "a command that failed wrote a result"
        well_formed(outcome, unaltered, altered=Path(file))


def told(outcome: Outcome) -> None:
    """Check that a command ended with a message or a result."""
    text = outcome.text
    assert outcome.status in (0, 1, 2), text
    assert "Traceback (most recent" not in text, text
    # sizes that a file states are to be refused before NumPy or PyTorch tries to allocate them
    assert "allocate" not in text.lower(), text
    if outcome.status == 2:
        assert "probsa: error:" in text or '"error"' in text, text


def well_formed(outcome: Outcome, unaltered: Outcome, *, altered: Path) -> None:
    """Check that accepted arrays are finite as before, and results of other bags are the same."""
    if outcome.status == 2:
        return
    altered_bag = altered.name.partition(".")[0]
    alters_one_bag = altered_bag in unaltered.results
    for name, result in outcome.results.items():
        expected = unaltered.results.get(name)
        if not isinstance(result, dict) or not isinstance(expected, dict):
            continue
        if alters_one_bag and name != altered_bag:
            assert same(result, expected), f"{name} changed"
        for key in result.keys() & expected.keys():
            values = result[key]
            if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
                continue
            if np.isfinite(expected[key]).all():
                assert np.isfinite(values).all(), f"{key} of {name}"


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


def alterations(files: list[str]) -> st.SearchStrategy[tuple[str, Alteration]]:
    """Return a strategy of (file, alteration); what a file holds is altered more often."""

    def of_file(file: str) -> st.SearchStrategy[tuple[str, Alteration]]:
        contents = OF_SUFFIX.get(Path(file).suffix, BYTES)
        return st.tuples(st.just(file), st.one_of(contents, contents, BYTES))

    return st.sampled_from(files).flatmap(of_file)


def files_of(subject: Subject, folder: Path) -> list[str]:
    """Return the files that a subject reads, relative to its folder, in order."""
    paths = {path for pattern in subject.files for path in folder.glob(pattern) if path.is_file()}
    return sorted(str(path.relative_to(folder)) for path in paths)


@pytest.mark.parametrize("name", BY_NAME)
def test_no_altered_input_breaks_a_command(bench, name):
    subject = BY_NAME[name]
    folder, _ = bench.base(subject)
    files = files_of(subject, folder)

    @settings(
        max_examples=EXAMPLES,
        derandomize=not NIGHTLY,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(alterations(files))
    def holds(case: tuple[str, Alteration]) -> None:
        file, alter = case

        def alter_if_possible(path: Path) -> None:
            # some files cannot be altered in some ways, and are read as they are
            with suppress(Exception):
                alter(path)

        bench.check(subject, file, alter_if_possible)

    holds()


REGRESSIONS = {
    "infinity in JSON": Regression(
        subject="predictions",
        file="predictions/faithfulness.json",
        alter=Value(("bags", "000", "least_first", "shown", 3), float("inf")),
    ),
    "a size in an archive": Regression(
        subject="run",
        file="run/training_distance.npz",
        alter=Header(0, {"shape": (10**12,)}),
    ),
    "a size in an index": Regression(
        subject="bags, slideflow",
        file="s1.index.npz",
        alter=Header(0, {"shape": (10**8, 64)}),
    ),
    "infinite places in an index": Regression(
        subject="bags, slideflow", file="s0.index.npz", alter=Array(0, "infinite")
    ),
    "infinite places of tiles": Regression(
        subject="bags, stamp", file=None, alter=Array(0, "infinite")
    ),
    "infinite places of patches": Regression(
        subject="bags, trident", file=None, alter=Array(0, "infinite")
    ),
    "unsigned coordinates": Regression(subject="bags, trident", file=None, alter=Array(0, "u8")),
    "no number in a header": Regression(
        subject="bags, torchmil", file=None, alter=Header(0, {"fortran_order": None})
    ),
}
"""Alterations that broke a command once; those of single readers are in their own tests."""


@pytest.mark.parametrize("kind", REGRESSIONS)
def test_an_alteration_that_broke_a_command_once_is_refused_or_left_out(bench, kind):
    regression = REGRESSIONS[kind]
    subject = BY_NAME[regression.subject]
    folder, _ = bench.base(subject)
    file = regression.file or files_of(subject, folder)[0]
    bench.check(subject, file, regression.alter)


def test_an_alteration_that_no_longer_fits_its_file_is_an_error(bench):
    absent = Value(("absent", "key"), 0)
    with pytest.raises(KeyError):
        bench.check(BY_NAME["predictions"], "predictions/faithfulness.json", absent)
