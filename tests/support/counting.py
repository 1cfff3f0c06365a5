"""A reader that notes which process opens which scan, in a file beside the scans."""

import os
from pathlib import Path

from probsa.cohorts.reading import PixelReader


class CountingReader(PixelReader):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        # known before it is sent to a process, which may have another environment
        self.log = Path(os.environ["PROBSA_TEST_OPENED"])

    def _source(self, chunk):
        before = self._job
        source = super()._source(chunk)
        if self._job != before:
            with self.log.open("a") as f:
                f.write(f"{chunk.record.name} {os.getpid()}\n")
        return source
