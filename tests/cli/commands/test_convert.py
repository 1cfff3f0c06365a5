"""probsa convert: its output and its exit status."""

import json
from pathlib import Path

import pytest
from support import foreign
from support.foreign import slide

from probsa.cli import main
from probsa.datasets import open_bags


def convert(source: Path, out: Path, came: str, *more: str) -> int:
    return main(["convert", str(source), "--from", came, "--out", str(out), *more])


def test_a_folder_is_converted_and_trains(tmp_path, capsys):
    slides = [slide(f"s{k}", seed=k, scan=40) for k in range(6)]
    source = foreign.stamp(tmp_path / "x", *slides)
    labels = tmp_path / "labels.csv"
    labels.write_text("bag,label,fold\n" + "".join(f"s{k},{k % 2},{k // 2}\n" for k in range(6)))
    out = tmp_path / "out"
    given = ["--slide-mpp", "0.2527", "--encoder", "uni", "--labels", str(labels)]
    assert convert(source, out, "stamp", *given) == 0
    assert str(out / "conversion.csv") in capsys.readouterr().out
    assert (out / "labels.csv").read_text() == labels.read_text()
    assert len(list(out.glob("*.h5"))) == 6
    flags = (
        f"train --features {out} --labels {out / 'labels.csv'} --out "
        f"{tmp_path / 'run'} --model abmil-probsa-diag --model.embed 4 --test-fold "
        "0 --epochs 1 --device cpu --maps none --tensorboard false"
    ).split()
    assert main(flags) == 0


def test_a_bag_that_fails_is_named_and_the_exit_status_says_so(tmp_path, capsys):
    source = foreign.slideflow(tmp_path / "x", slide("a"), slide("b", seed=1))
    (source / "b.pt").write_bytes((source / "b.pt").read_bytes()[:50])
    assert convert(source, tmp_path / "one", "slideflow") == 1
    assert "b.pt" in capsys.readouterr().err
    assert convert(source, tmp_path / "two", "slideflow", "--json") == 1
    done = json.loads(capsys.readouterr().out)
    assert (done["converted"], done["empty"], done["failed"]) == (1, 0, 1)
    assert [b["status"] for b in done["bags"]] == ["converted", "failed"]
    assert done["bags"][0]["file"] == "a.h5"
    assert open_bags(tmp_path / "two").names == ("a",)


def test_an_empty_slide_is_no_failure(tmp_path, capsys):
    source = foreign.trident(tmp_path / "x", slide("a"))
    foreign.trident_empty(source, "b")
    assert convert(source, tmp_path / "out", "trident", "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["converted"], done["empty"], done["failed"]) == (1, 1, 0)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--from", "eva"], "'eva'"),
        (["--from", "clam"], "trident"),
        (["--slide-mpp", "none.csv"], "none.csv"),
        (["--feature-set", "features_x"], "'features_x'"),
        (["--to", "clam"], "'--to'"),
        (["--encodr", "x"], "'--encoder'"),
    ],
)
def test_wrong_usage(tmp_path, capsys, more, named):
    source = foreign.trident(tmp_path / "x", slide())
    assert convert(source, tmp_path / "out", "trident", *more) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
