"""The advice of a command that was stopped."""

import pytest

from probsa.cli.entry import COMMANDS, advice_after_stop


@pytest.mark.parametrize("command", COMMANDS)
def test_only_training_goes_on_with_another_command(command):
    advice = advice_after_stop([command, "--out", "my run"])
    assert ("probsa train --out 'my run' --resume" in advice) == (command == "train")


def test_a_run_folder_may_stand_behind_an_equals_sign():
    assert "probsa train --out r --resume" in advice_after_stop(["train", "--out=r"])
