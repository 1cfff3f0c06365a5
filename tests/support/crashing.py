"""Stages whose decoder crashes at slide1, as native libraries do at some damaged files."""

import os
import signal

from probsa.cohorts.patching import Patching
from probsa.cohorts.reading import PixelReader


def crash_at(name: str) -> None:
    if name == "slide1":
        os.kill(os.getpid(), signal.SIGSEGV)


class CrashingPatching(Patching):
    def _cut(self, record, slide):
        crash_at(record.name)
        return super()._cut(record, slide)


class CrashingReader(PixelReader):
    def __getitem__(self, chunk):
        crash_at(chunk.record.name)
        return super().__getitem__(chunk)
