"""What a command says when it is stopped."""

import pytest

from probsa.cli.entry import COMMANDS, advice_after_stop


@pytest.mark.parametrize("command", COMMANDS)
def test_the_message_of_a_stop_says_how_to_go_on(command):
    words = advice_after_stop([command, "--out", "my run"])
    if command == "train":
        assert words.endswith("probsa train --out 'my run' --resume")
        assert advice_after_stop(["train", "--out=r"]).endswith("probsa train --out r --resume")
    else:
        assert "the same command" in words.lower()
