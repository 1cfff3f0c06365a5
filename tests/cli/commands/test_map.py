"""`probsa map --score`."""

from dataclasses import replace

import numpy as np
from support.made_maps import slide

from probsa.cli import main
from probsa.evaluation import write_predictions


def test_the_score_is_an_option(tmp_path, capsys):
    n = len(slide().attention_mean)
    p = replace(slide(), contribution=np.linspace(-1, 1, n, dtype=np.float32))
    write_predictions(
        tmp_path / "p", [p], labels={}, parts={}, classes=["0", "1"], threshold=None, metadata={}
    )
    for score in ("auto", "attention", "contribution"):
        given = ["map", str(tmp_path / "p"), "--out", str(tmp_path / score), "--score", score]
        assert main(given) == 0
        assert (tmp_path / score / "bag.png").is_file()
    capsys.readouterr()
    given = ["map", str(tmp_path / "p"), "--out", str(tmp_path / "x"), "--score", "evidence"]
    for score in ("evidence", "beauty"):
        assert main([*given[:-1], score]) == 2
        printed = capsys.readouterr().err
        assert all(name in printed for name in (score, "attention", "contribution"))


def test_variances_that_the_shown_score_lacks_are_named(tmp_path, capsys):
    n = len(slide().attention_mean)
    p = replace(slide(), contribution=np.linspace(-1, 1, n, dtype=np.float32))
    write_predictions(
        tmp_path / "p", [p], labels={}, parts={}, classes=["0", "1"], threshold=None, metadata={}
    )
    for score, is_named in (("attention", False), ("contribution", True)):
        out = tmp_path / score
        given = ["map", str(tmp_path / "p"), "--out", str(out), "--score", score, "--variances"]
        assert main(given) == 0
        assert ("--score attention" in capsys.readouterr().err) is is_named
