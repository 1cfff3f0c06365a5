"""The commands: their output, the files that they write, their help and their exit status."""

import csv
import json
import pkgutil
import re
import shutil
import subprocess
import sys

import h5py
import pytest
from support.stored import write_folder

import probsa
from probsa.cli import commands
from probsa.cli.command import Command
from probsa.cli.entry import COMMANDS, main
from probsa.evaluation import at_chance, load, read_predictions
from probsa.training import RunFolder, default_recipe, read_split
from probsa.workflow import finish_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train a run; return (features, labels, run folder)."""
    folder = tmp_path_factory.mktemp("cli")
    features, labels = write_folder(folder / "data")
    run = folder / "run"
    assert main(train_flags(features, labels, run)) == 0
    return features, labels, run


def train_flags(features, labels, out, *more):
    return [
        "train", "--features", str(features), "--labels", str(labels), "--out", str(out),
        "--model", "abmil-probsa-diag", "--model.embed", "8", "--test-fold", "0", "--epochs", "2",
        "--batch-size", "2", "--device", "cpu", "--tensorboard", "false", *more,
    ]  # fmt: skip


def failed(capsys, *arguments):
    """Return the error of a command that must fail, after checking that --json prints it too."""
    assert main(list(arguments)) == 2
    words = capsys.readouterr().err
    assert main([*arguments, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] in words
    return words


def test_train_leaves_predictions_figures_and_maps(trained):
    _, _, run = trained
    with (run / "predictions" / "predictions.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert {r["part"] for r in rows} == {"val", "test"} and len(rows) == 8
    assert len(list((run / "maps").glob("*.png"))) == 4
    found = json.loads((run / "evaluation.json").read_text())
    assert "auroc" in json.dumps(found)
    choice = json.loads((run / "map_score.json").read_text())
    assert choice["chosen"] in ("attention", "contribution", "evidence")
    assert json.loads((run / "predictions" / "predictions.json").read_text())["map_score"] == choice


def test_predict_evaluate_map(trained, tmp_path, capsys):
    features, labels, run = trained
    preds = tmp_path / "preds"
    given = ["predict", str(run), "--features", str(features), "--out", str(preds), "--json"]
    assert main([*given, "--labels", str(labels)]) == 0
    assert json.loads(capsys.readouterr().out)["bags"] == 12
    stored = json.loads((preds / "predictions.json").read_text())["map_score"]
    assert stored == json.loads((run / "map_score.json").read_text())
    with (preds / "predictions.csv").open() as f:
        rows = {r["bag"]: r for r in csv.DictReader(f)}
    assert rows["000"]["part"] in ("train", "val", "test") and len(rows) == 12
    with (run / "predictions" / "predictions.csv").open() as f:
        for row in csv.DictReader(f):  # independent of the batch and of the other bags
            assert float(row["p_1"]) == pytest.approx(float(rows[row["bag"]]["p_1"]), abs=1e-6)
    assert main(["evaluate", str(preds), "--labels", str(labels), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["part"] != "all" and isinstance(report["chance"], str)
    rival = report["target"]["rivals"]["mean of the features"]["auroc"]["value"]
    assert rival is not None and (
        report["chance"] == "" or "mean of the features" in report["chance"]
    )
    assert main(["evaluate", str(preds), "--labels", str(labels)]) == 0
    assert "AUROC" in capsys.readouterr().out
    assert main(["map", str(preds), "--bag", "003", "--out", str(tmp_path / "maps")]) == 0
    assert [p.name for p in (tmp_path / "maps").glob("[!.]*")] == ["003.png"]


def test_reservations_about_a_run_are_stored_with_all_its_predictions(
    trained, tmp_path, monkeypatch, capsys
):
    features, _, run = trained
    shutil.copytree(run, tmp_path / "run")
    said = ("This model is not shown better than chance: so.", "nor is its map")
    monkeypatch.setattr("probsa.evaluation.report.report.Report.reservations", said)
    finish_run(RunFolder(tmp_path / "run"), bootstrap=0, maps="none", extras=False)
    given = ["predict", str(tmp_path / "run"), "--features", str(features)]
    assert main([*given, "--out", str(tmp_path / "p")]) == 0
    for folder in (tmp_path / "run" / "predictions", tmp_path / "p"):
        stored = read_predictions(folder).metadata["reservations"]
        assert stored[: len(said)] == list(said)
        assert "4 bags" in stored[-1]  # so few that ± spans little
    own = read_predictions(run / "predictions").metadata.get("reservations", [])
    both = f"{said[0]} (the first of 2 such runs)"
    # of several runs, only what holds for all
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    for other, expected in (("again", both), (run, both if at_chance(own) else "")):
        several = [*given[:2], str(tmp_path / other), *given[2:], "--out", str(tmp_path / "of_two")]
        capsys.readouterr()
        assert main([*several, "--overwrite", "--json"]) == 1  # both runs have seen most bags
        assert json.loads(capsys.readouterr().out)["chance"] == expected
        stored = read_predictions(tmp_path / "of_two").metadata.get("reservations", [])
        assert stored == ([expected] if expected else [])


def test_evaluate_uses_the_groups_that_predict_stored(trained, tmp_path, capsys):
    features, labels, run = trained
    header, *rows = labels.read_text().splitlines()
    grouped, found = tmp_path / "grouped.csv", {}
    text = [f"{header},group", *(f"{row},g{k // 4}" for k, row in enumerate(rows))]
    grouped.write_text("\n".join(text))
    for name, table in (("with", grouped), ("without", labels)):
        out = tmp_path / name
        given = ["predict", str(run), "--features", str(features), "--out", str(out)]
        assert main([*given, "--labels", str(table)]) == 0
        capsys.readouterr()
        for more in ([], ["--labels", str(grouped)]):
            assert main(["evaluate", str(out), "--part", "all", "--json", *more]) == 0
            report = json.loads(capsys.readouterr().out)
            found[name, bool(more)] = report["metrics"]["auroc"], report.get("patients")
    assert found["with", False] == found["with", True] == found["without", True]
    assert found["with", False] != found["without", False]


def test_a_bag_that_cannot_be_read_is_left_out_with_its_reason(trained, tmp_path, capsys):
    features, _, run = trained
    copy = tmp_path / "features"
    shutil.copytree(features, copy)
    (copy / "004.h5").write_bytes((copy / "004.h5").read_bytes()[:200])
    preds = tmp_path / "preds"
    given = ["predict", str(run), "--features", str(copy), "--out", str(preds), "--json"]
    assert main(given) == 1
    found = json.loads(capsys.readouterr().out)
    assert [f["bag"] for f in found["failed"]] == ["004"] and found["bags"] == 11
    with (preds / "failed.csv").open() as f:
        assert [r["bag"] for r in csv.DictReader(f)] == ["004"]
    assert not (preds / "instances" / "004.h5").exists()


def test_unknown_names_are_answered_with_the_likely_one(capsys):
    assert "Did you mean 'train'" in failed(capsys, "trian")
    assert "Did you mean '--labels'" in failed(capsys, "evaluate", "x", "--lables", "y")
    assert "Did you mean 'abmil'" in failed(capsys, "models", "abmli")


def test_outputs_that_exist_are_refused(trained, tmp_path, capsys):
    features, labels, run = trained
    assert "--resume" in failed(capsys, *train_flags(features, labels, run))
    preds = tmp_path / "preds"
    given = ["predict", str(run), "--features", str(features), "--out", str(preds)]
    assert main(given) == 0
    assert "--overwrite" in failed(capsys, *given)
    assert main([*given, "--overwrite"]) == 0
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("precious")
    given[-1] = str(mine)
    assert "would be deleted" in failed(capsys, *given, "--overwrite")
    assert (mine / "thesis.txt").exists()


def test_resume_needs_no_more_than_the_folder(trained, capsys):
    _, _, run = trained
    before = (run / "checkpoints" / "last.safetensors").read_bytes()
    assert main(["train", "--out", str(run), "--resume"]) == 0
    assert "done already" in capsys.readouterr().err
    assert (run / "checkpoints" / "last.safetensors").read_bytes() == before


def test_features_of_another_encoder_are_refused(trained, tmp_path, capsys):
    import h5py
    import numpy as np

    _, _, run = trained
    other = tmp_path / "other"
    other.mkdir()
    with h5py.File(other / "a.h5", "w") as f:
        f["features"] = np.zeros((3, 9), np.float32)
        f["coords"] = np.arange(3)[:, None]
    said = failed(
        capsys, "predict", str(run), "--features", str(other), "--out", str(tmp_path / "p")
    )
    assert "9 features" in said and "trained on 6" in said
    assert not (tmp_path / "p").exists()


def test_folders_that_are_not_what_they_should_be(tmp_path, capsys):
    assert "not a run folder" in failed(
        capsys, "predict", str(tmp_path), "--features", str(tmp_path), "--out", str(tmp_path / "p")
    )
    assert str(tmp_path) in failed(capsys, "evaluate", str(tmp_path))
    assert str(tmp_path) in failed(capsys, "map", str(tmp_path), "--out", str(tmp_path / "m"))
    assert not (tmp_path / "m").exists()


def test_a_map_of_a_training_bag_says_so(trained, tmp_path, monkeypatch):
    features, _, run = trained
    preds = tmp_path / "preds"
    assert main(["predict", str(run), "--features", str(features), "--out", str(preds)]) == 0
    with (preds / "predictions.csv").open() as f:
        part = {r["bag"]: r["part"] for r in csv.DictReader(f)}
    titles = {}
    monkeypatch.setattr(
        "probsa.maps.folder.draw_map", lambda p, **given: titles.update({p.name: given})
    )
    monkeypatch.setattr("probsa.maps.folder.save_figure", lambda figure, path: None)
    assert main(["map", str(preds), "--out", str(tmp_path / "m")]) == 0
    for bag, given in titles.items():
        heading = given["title"].splitlines()[0]
        assert heading.endswith("a training bag") == (part[bag] == "train")
    assert set(titles) == set(part)


def test_help_and_models(capsys):
    for arguments in ([], ["help"], ["--help"]):
        assert main(arguments) == 0
        text = capsys.readouterr().out
        assert all(f"\n    {command}" in text for command in COMMANDS)
    assert all(Command(name).description.partition("\n")[0].endswith(".") for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == probsa.__version__
    assert main(["models", "abmil-probsa-diag", "--json"]) == 0
    samples = json.loads(capsys.readouterr().out)["samples"]
    assert samples == {"type": "int", "default": 16}
    assert main(["models", "abmil-probsa-diag"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "samples a whole number (at least 1 and at most 100000) = 16" in lines


def test_the_table_of_commands_is_what_the_folder_has():
    modules = {m.name for m in pkgutil.iter_modules(commands.__path__)}
    assert {m for m in modules if m[0] != "_"} == {name.replace("-", "_") for name in COMMANDS}


def test_help_imports_nothing_heavy():
    """All in one process, so that a heavy import of any command is found."""
    code = f"""
import sys
from probsa.cli.entry import main
for arguments in [["--help"], *([c, "--help"] for c in {COMMANDS!r})]:
    assert main(arguments) == 0
    heavy = {{"torch", "h5py", "sklearn", "matplotlib", "scipy"}} & set(sys.modules)
    assert not heavy, (arguments, heavy)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_describes_every_argument(capsys, command):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: probsa {command} ") and "--json" in text
    undocumented = re.findall(r"^  (--[\w.-]+(?: \S+)?)\n(?=  \S|\n|$)", text, re.MULTILINE)
    assert undocumented == []


def test_help_of_train_lists_keys_with_choices_limits_and_defaults(capsys):
    assert main(["train", "--help"]) == 0
    short = capsys.readouterr().out
    assert "\n  --epochs" in short and "--help-all" in short and "--kl-weight" not in short
    assert len(re.findall(r"^  --", short, re.MULTILINE)) == 16 + len(["--json", "--help-all"])
    assert main(["train", "--help-all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    recipe = default_recipe()
    epochs, kl_weight = recipe["training.epochs"], recipe["training.kl_weight"]
    assert f"[a whole number (at least 1); default {epochs}, with --model 100]" in text
    assert f"'linear' or 'cyclical'; default {kl_weight}, with --model cyclical]" in text
    assert f"Default: the default recipe, with {recipe['model.name']}." in text
    assert "--trunk" not in text
    assert main(["train", "--model", "abmil-probsa-diag", "--help"]) == 0
    assert "--trunk" in capsys.readouterr().out
    assert main(["train", "--model", "abmil-probsa-diag", "--help-all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--trunk" in text and "['tanh', 'gated' or 'mlp'; default tanh]" in text
    assert "[a whole number (at least 1); default 100]" in text
    assert "[a number (at least 0), 'linear' or 'cyclical'; default cyclical]" in text


def test_shell_completion_knows_every_command_and_flag(capsys):
    for shell in ("bash", "zsh"):
        assert main(["--print-shtab", shell]) == 0
        script = capsys.readouterr().out
        for words in (*COMMANDS, "--other-features", "--learning-rate", "--tables-only", "knn"):
            assert words in script, (shell, words)
    assert main(["--print-shtab", "fish"]) == 2
    assert "expected 'bash' or 'zsh'" in capsys.readouterr().err


def test_the_schema_of_a_run_file_is_printed(capsys):
    assert main(["train", "--model", "abmil", "--print-schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["training"]["properties"]["epochs"]["type"] == "integer"
    assert "kappa" not in schema["properties"]["model"]["properties"]
    assert main(["train", "--print-schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert (
        schema["properties"]["training"]["properties"]["epochs"]["default"]
        == (default_recipe()["training.epochs"])
    )
    assert "kappa" in schema["properties"]["model"]["properties"]


def without_model(folder, *more):
    """The command that trains a small ensemble by the default recipe, and its run folder."""
    run = folder / "run"
    return run, [
        "train", "--features", str(folder / "data" / "features"),
        "--labels", str(folder / "data" / "labels.csv"), "--out", str(run), "--members", "2",
        "--epochs", "1", "--embed", "8", "--predict-samples", "4", "--test-fold", "0",
        "--device", "cpu", "--tensorboard", "false", "--maps", "none", *more,
    ]  # fmt: skip


def test_train_without_a_model_says_that_it_uses_the_default_recipe(tmp_path, capsys):
    write_folder(tmp_path / "data")
    run, command = without_model(tmp_path)
    assert main(command) == 0
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if "default recipe" in line]
    recipe = default_recipe()
    (line,) = lines
    assert line.startswith(f"no model is given: training {recipe['model.name']} by the default")
    assert "epochs 1," in line and "members 2" in line
    assert f"batch_size {recipe['training.batch_size']}," in line
    assert line.endswith("For another model and the paper's recipe, add --model NAME")
    assert load(run).metadata["members"] == 2
    assert main(["train", "--out", str(run), "--resume", "--maps", "none"]) == 0
    again = capsys.readouterr()
    assert "default recipe" not in again.err
    bags = len(read_split(RunFolder(run)).train)
    assert f"trained: {recipe['model.name']}, 2 members, on {bags} bags in 0:00:0" in again.out


def test_train_says_that_a_kl_weight_of_0_means_the_plain_model(tmp_path, capsys):
    write_folder(tmp_path / "data")
    run, command = without_model(tmp_path, "--model", "abmil-probsa-diag", "--kl-weight", "0")
    assert main(command) == 0
    said = capsys.readouterr().err
    assert "kl_weight is 0: training abmil, abmil-probsa-diag without its prior" in said
    assert load(run).metadata["model"] == "abmil"


def test_train_without_a_model_on_three_classes(tmp_path, capsys):
    _, labels = write_folder(tmp_path / "data", bags=18)
    rows = [line.split(",") for line in labels.read_text().splitlines()[1:]]
    labels.write_text(
        "bag,label,fold\n"
        + "".join(f"{b},{k // 3 % 3},{k % 3}\n" for k, (b, *_) in enumerate(rows))
    )
    run, command = without_model(tmp_path, "--json")
    assert main(command) == 0, capsys.readouterr().err
    evaluation = json.loads(capsys.readouterr().out)["evaluation"]
    assert evaluation["classes"] == ["0", "1", "2"] and run.is_dir()


@pytest.mark.parametrize("with_coordinates", [True, False])
def test_train_without_a_model_and_without_a_graph(tmp_path, capsys, with_coordinates):
    features, _ = write_folder(tmp_path / "data", kind="slide")
    if not with_coordinates:
        for file in features.glob("*.h5"):
            with h5py.File(file, "a") as f:
                del f["coords"]
    more = ["--graph", "none"] if with_coordinates else []
    said = failed(capsys, *without_model(tmp_path, *more)[1])
    assert "evidence-field needs neighbours, but no training bag" in said
    assert ("--graph knn" if with_coordinates else "no coordinates") in said
    assert "--model abmil" in said
    if not with_coordinates:
        assert "--model abmil" in said
        said = failed(capsys, *without_model(tmp_path, "--graph", "knn")[1])
        assert "coordinates" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["predict"], "probsa predict needs RUN and --features and --out"),
        (["evaluate", "p", "x"], "got an unexpected value 'x'"),
        (["evaluate", "p", "--part", "tests"], "Did you mean 'test'"),
        (["evaluate", "p", "--bootstrap", "x"], "--bootstrap is 'x'; expected a whole number"),
        (["map", "p", "--out", "m", "--geojson=yes"], "--geojson is 'yes'; expected 'contours'"),
        (["map", "p", "--out", "m", "--slides", "s", "--resolution", "2", "--longest", "9"],
         "one of the two"),
        (["convert", "s", "--out", "o"], "probsa convert needs --from"),
        (["train", "--out"], "--out needs a value"),
        (["train", "--maps", "some"], "--maps is 'some'; expected 'test', 'all' or 'none'"),
        (["train", "extra"], "probsa train got an unexpected value 'extra'"),
        (["patch", "s", "--out", "o", "--workers", "0"], "--workers is 0; expected at least 1"),
        (["patch", "s", "--out", "o", "--shard", "4/4"], "--shard is '4/4': expected I/N"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_answered_with_what_is_expected(
    capsys, monkeypatch, tmp_path, arguments, words
):
    for name in ("p", "s"):  # the paths are there: they are checked first
        (tmp_path / name).mkdir()
    (tmp_path / "s" / "a.tif").touch()
    monkeypatch.chdir(tmp_path)
    assert words in failed(capsys, *arguments)


def test_print_config_is_a_run_file(trained, tmp_path, capsys):
    features, labels, _ = trained
    assert main(train_flags(features, labels, tmp_path / "r", "--print_config")) == 0
    file = tmp_path / "run.yaml"
    file.write_text(capsys.readouterr().out)
    assert not (tmp_path / "r").exists()
    given = ["train", "--config", str(file), "--out", str(tmp_path / "r"), "--maps", "none"]
    assert main([*given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["maps"] == 0


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("bag,label\n000,0\n001,one\n", "'one'"),
        ("bag,label\n000,0\n000,1\n", "000"),
        ("bag,label,group,split\n" + "".join(
            f"{k:03d},{k % 2},g{k // 3},{('train', 'val', 'test')[k % 3]}\n" for k in range(12)
        ), "g0"),
    ],
    ids=["a label that is no class", "a bag twice", "a group in two parts"],
)  # fmt: skip
def test_tables_that_cannot_be_used(trained, tmp_path, capsys, table, said):
    features, _, _ = trained
    labels = tmp_path / "labels.csv"
    labels.write_text(table)
    given = [
        a for a in train_flags(features, labels, tmp_path / "r") if a not in ("--test-fold", "0")
    ]
    words = failed(capsys, *given)
    assert "labels.csv" in words and said in words
    assert not (tmp_path / "r").exists()
