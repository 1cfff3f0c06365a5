"""Slides that are cut in the process of a test: a new process would take longer than they do."""

from dataclasses import replace
from typing import Any

import pytest

from probsa.cli.flags import WorkFlags
from probsa.cohorts import RunOptions


def use_one_process(patch: pytest.MonkeyPatch) -> None:
    """Let the commands on slides of this process start no others."""
    options = WorkFlags.options

    def in_this_process(flags: WorkFlags, **more: Any) -> RunOptions:
        return replace(options(flags, **more), workers=1, isolated=False)

    one = RunOptions(workers=1)
    patch.setattr(WorkFlags, "options", in_this_process)
    patch.setattr("probsa.workflow.pipeline.RunOptions", lambda **_: one)
