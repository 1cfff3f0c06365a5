"""Run one case: copy a folder, alter one file by a seed, run what reads it, and judge.

The verdicts, worst last:

clean                   refused with exit status 2, or left alone with a finding, in one sentence
left out                exit status 1; all other bags have the results of the unaltered folder
accepted and equal      the results of the unaltered folder, or those of other values that the file
                        states in the same form: same names, shapes and types, all numbers finite
accepted and different  other results although the file no longer has that form
traceback               an exception that is not ours, or the line that replaces it (status 70)
hang                    more than `SECONDS`
memory                  the peak grew by more than `MEGABYTES`, or memory could not be had
left over               temporary files, or an output beside the refusal
"""

import json
import resource
import shutil
import signal
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fuzz.forms import form_of, may_be_missing
from fuzz.mutations import BYTES, Draw
from fuzz.subjects import SUBJECTS, Outcome, Subject, same

Verdict = Literal[
    "clean", "left out", "accepted and equal", "accepted and different", "traceback", "hang",
    "memory", "left over",
]  # fmt: skip
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
FAULTS = VERDICTS[3:]
"""The verdicts of which there should be none."""
SECONDS = 15.0
MEGABYTES = 500
ADDRESSES = 3 * 10**9
"""Bytes of addresses that a case may take beyond those in use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What became of one case."""

    seed: int
    subject: str
    file: str
    mutation: str
    verdict: Verdict
    detail: str
    seconds: float
    names_file: bool
    """Whether a refusal names the altered file or its bag."""


class TooLong(BaseException):
    """A case took too long; no reader catches it."""


class Bench:
    """The unaltered folders and their results, made when they are first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[str, tuple[Path, Outcome]] = {}

    def base(self, subject: Subject) -> tuple[Path, Outcome]:
        """Return the unaltered folder of a subject, and its outcome."""
        if subject.name not in self._made:
            folder = self.folder / subject.name.replace(" ", "_").replace(",", "")
            folder.mkdir(parents=True)
            subject.build(folder)
            copy = _copied(folder, self.folder / "case")
            outcome = subject.drive(copy, self.folder / "out")
            if outcome.status != 0:
                raise RuntimeError(f"{subject.name}, unaltered: {outcome.text}")
            self._made[subject.name] = folder, outcome
        return self._made[subject.name]

    def run(self, seed: int, *, subject: Subject | None = None) -> Case:
        """Run the case of a seed; the subjects take turns."""
        subject = subject or SUBJECTS[seed % len(SUBJECTS)]
        base, unaltered = self.base(subject)
        draw = Draw(seed, subject.name)
        case, out = _copied(base, self.folder / "case"), _gone(self.folder / "out")
        path, mutation = _choice(subject, case, draw)
        original = base / path.relative_to(case)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                what = f"{mutation.__name__}: {mutation(path, draw)}"
        except Exception as error:  # noqa: BLE001 - some files cannot be altered in some ways
            return _case(seed, subject, path, case, f"{mutation.__name__} does not apply",
                         "accepted and equal", type(error).__name__)  # fmt: skip
        before = set(case.rglob("*"))
        start = time.perf_counter()
        outcome, fault, detail = _guarded(subject, case, out)
        seconds = time.perf_counter() - start
        verdict: Verdict
        if fault is not None or outcome is None:
            verdict = fault or "traceback"
        elif left := _left_over(case, out, before, refused=outcome.status == 2):
            verdict, detail = "left over", ", ".join(left)
        else:
            verdict, detail = _judged(outcome, unaltered, original=original, altered=path)
        text = "" if outcome is None else outcome.text
        named = path.name in text or path.stem in text or path.name.partition(".")[0] in text
        return _case(seed, subject, path, case, what, verdict, detail, seconds=seconds, named=named)


def _case(seed: int, subject: Subject, path: Path, case: Path, what: str, verdict: Verdict,
          detail: str, *, seconds: float = 0.0, named: bool = True) -> Case:  # fmt: skip
    return Case(
        seed=seed, subject=subject.name, file=str(path.relative_to(case)), mutation=what,
        verdict=verdict, detail=" ".join(detail.split())[:300], seconds=round(seconds, 3),
        names_file=named,
    )  # fmt: skip


def _gone(path: Path) -> Path:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    return path


def _copied(base: Path, folder: Path) -> Path:
    _gone(folder.with_name("out"))
    return Path(shutil.copytree(base, _gone(folder)))


def _choice(subject: Subject, case: Path, draw: Draw) -> tuple[Path, Any]:
    pattern = draw.one(sorted(subject.files))
    path = draw.one(sorted(p for p in case.glob(pattern) if p.is_file()))
    own = subject.files[pattern]
    if "null_maps" in pattern and path.suffix == ".json":
        own = ()
    mutations = own if own and draw.below(10) < 7 else BYTES
    return path, draw.one(mutations)


def _guarded(subject: Subject, case: Path, out: Path) -> tuple[Outcome | None, Verdict | None, str]:
    """Drive a case within its limits; return its outcome or its fault, with details."""
    outcome: Outcome | None = None
    detail, fault = "", None
    start = time.perf_counter()
    _reset_peak()
    resting = _peak()
    with _limits(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as the command does; the tests make errors of warnings
        try:
            outcome = subject.drive(case, out)
        except TooLong:
            fault, detail = "hang", f"{SECONDS:g} s"
        except MemoryError as error:
            fault, detail = "memory", f"MemoryError: {error} {_where(error)}"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            fault, detail = "traceback", f"{type(error).__name__}: {error} {_where(error)}"
    if time.perf_counter() - start > SECONDS:
        fault, detail = "hang", detail or f"{SECONDS:g} s"
    elif fault is None and _peak() - resting > MEGABYTES:
        fault, detail = "memory", f"{_peak() - resting:.0f} MB"
    if outcome is not None and fault is None:
        if "Traceback (most recent" in outcome.text or outcome.status == 70:
            fault, detail = "traceback", outcome.text[-300:]
        elif outcome.status not in (0, 1, 2):
            fault, detail = "traceback", f"status {outcome.status}"
        elif "allocate" in outcome.text.lower():
            fault, detail = "memory", outcome.text[-300:]
    return outcome, fault, detail


def _where(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/probsa/" in f.filename]
    return f"at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


@contextmanager
def _limits() -> Iterator[None]:
    """Limit the time and the memory of what is done inside."""

    def ring(*_: object) -> None:
        raise TooLong

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


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # the peak of the whole process is used instead
        return


def _peak() -> float:
    """Return the peak of resident memory in megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def _left_over(case: Path, out: Path, before: set[Path], *, refused: bool) -> list[str]:
    found = [p for p in case.rglob("*") if p not in before]
    found += list(out.parent.glob(f".{out.name}*"))
    found += [p for p in out.rglob(".*") if p.suffix in (".tmp", ".old", ".lock")]
    if refused and out.exists() and any(p.is_file() for p in out.rglob("*")):
        found.append(out)
    return [str(p.name) for p in found]


def _judged(
    outcome: Outcome, unaltered: Outcome, *, original: Path, altered: Path
) -> tuple[Verdict, str]:
    text = outcome.text.strip()
    if outcome.status == 2:
        error = "probsa: error:" in text or '"error"' in text
        return ("clean", text[-300:]) if error else ("traceback", f"no message: {text[-200:]}")
    if (
        f"no per-instance outputs of 1 bag ('{altered.stem}')" in text
        or "some bags have no stored scores of it" in text
    ):
        return "left out", "a warning of the report says so"
    if outcome.status == 1 or _reported(outcome, unaltered):
        kept = {k: v for k, v in outcome.results.items() if k in unaltered.results}
        changed = [k for k, v in kept.items() if not same(v, unaltered.results[k])]
        if changed and form_of(altered) != form_of(original):
            return "accepted and different", f"{changed} beside a bag left out"
        return "left out", text[-300:]
    if same(dict(outcome.results), dict(unaltered.results)):
        return "accepted and equal", ""
    if form_of(altered) == form_of(original):
        return "accepted and equal", "as the file states"
    kept = [k for k in outcome.results if k in unaltered.results]
    gone = not altered.is_file() and len(kept) == len(outcome.results)
    if gone and all(same(outcome.results[k], unaltered.results[k]) for k in kept):
        return "accepted and equal", "there is no such file"
    if may_be_missing(original, altered):
        return "accepted and equal", "optional parts, rows or columns differ"
    both = {**outcome.results, **unaltered.results}
    changed = [k for k in both if not same(outcome.results.get(k), unaltered.results.get(k))]
    return "accepted and different", f"{changed}; {json.dumps(form_of(altered), default=str)[:150]}"


def _reported(outcome: Outcome, unaltered: Outcome) -> bool:
    """Return whether all that is missing is named in what was said (empty bags: status 0)."""
    missing = set(unaltered.results) - set(outcome.results)
    return bool(missing) and all(k.partition(".")[0] in outcome.text for k in missing)
