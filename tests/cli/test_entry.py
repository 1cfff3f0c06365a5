"""The commands: their output, the files that they write, their help and their exit status."""

import csv
import json
import pkgutil
import re
import shutil

import h5py
import numpy as np
import pytest
from support.stored import write_folder

import probsa
from probsa.cli import commands, main
from probsa.cli.command import Command
from probsa.cli.entry import COMMANDS
from probsa.evaluation import Reservation, at_chance, load, read_predictions
from probsa.models import arguments as arguments_of
from probsa.training import RunFolder, default_recipe
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
        *(
            f"train --features {features} --labels {labels} --out {out} --model "
            "abmil-probsa-diag --model.embed 8 --test-fold 0 --epochs 2 --batch-size "
            "2 --device cpu --tensorboard false"
        ).split(),
        *more,
    ]


def failed(capsys, *arguments):
    """Return the class and the text of the error of a command that must fail."""
    assert main(list(arguments)) == 2
    printed = capsys.readouterr().err
    assert main([*arguments, "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"] in printed
    return answer["kind"], answer["error"]


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
    assert report["part"] != "all"
    assert report["target"]["rivals"]["mean of the features"]["auroc"]["value"] is not None
    assert main(["map", str(preds), "--bag", "003", "--out", str(tmp_path / "maps")]) == 0
    assert [p.name for p in (tmp_path / "maps").glob("[!.]*")] == ["003.png"]


def test_reservations_about_a_run_are_stored_with_all_its_predictions(
    trained, tmp_path, monkeypatch, capsys
):
    features, _, run = trained
    shutil.copytree(run, tmp_path / "run")
    chance = Reservation(kind="chance", text="This model is not shown better than chance: so.")
    said = (chance, Reservation(kind="null maps", text="nor is its map"))
    monkeypatch.setattr("probsa.evaluation.report.report.Report.reservations", said)
    finish_run(RunFolder(tmp_path / "run"), bootstrap=0, maps="none", extras=False)
    given = ["predict", str(tmp_path / "run"), "--features", str(features)]
    assert main([*given, "--out", str(tmp_path / "p")]) == 0
    for folder in (tmp_path / "run" / "predictions", tmp_path / "p"):
        stored = read_predictions(folder).metadata
        assert stored.reservations[: len(said)] == said and stored.training_bags == 4
        assert stored.reservations[-1].kind == "few training bags"  # so few that ± spans little
    own = read_predictions(run / "predictions").metadata.reservations
    both = f"{chance.text} (the first of 2 such runs)"
    # of several runs, only what holds for all
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    for other, expected in (("again", both), (run, both if at_chance(own) else "")):
        several = [*given[:2], str(tmp_path / other), *given[2:], "--out", str(tmp_path / "of_two")]
        capsys.readouterr()
        assert main([*several, "--overwrite", "--json"]) == 1  # both runs have seen most bags
        assert json.loads(capsys.readouterr().out)["chance"] == expected
        stored = read_predictions(tmp_path / "of_two").metadata.reservations
        assert [(each.kind, each.text) for each in stored] == (
            [("chance", expected)] if expected else []
        )


def test_evaluate_uses_the_groups_that_predict_stored(trained, tmp_path, capsys):
    features, labels, run = trained
    header, *rows = labels.read_text().splitlines()
    grouped = tmp_path / "grouped.csv"
    found = {}
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


@pytest.mark.parametrize(
    ("arguments", "kind", "likely"),
    [
        (["trian"], "UnknownName", "'train'"),
        (["evaluate", "x", "--lables", "y"], "InputError", "'--labels'"),
        (["models", "abmli"], "UnknownName", "'abmil'"),
    ],
)
def test_unknown_names_are_answered_with_the_likely_one(capsys, arguments, kind, likely):
    error = failed(capsys, *arguments)
    assert error[0] == kind and likely in error[1]


def test_outputs_that_exist_are_refused(trained, tmp_path, capsys):
    features, labels, run = trained
    assert failed(capsys, *train_flags(features, labels, run))[0] == "OutputExists"
    preds = tmp_path / "preds"
    given = ["predict", str(run), "--features", str(features), "--out", str(preds)]
    assert main(given) == 0
    assert failed(capsys, *given)[0] == "OutputExists"
    assert main([*given, "--overwrite"]) == 0
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("precious")
    kind, error = failed(capsys, *given[:-1], str(mine), "--overwrite")
    assert kind == "OutputExists" and "thesis.txt" in error
    assert (mine / "thesis.txt").exists()


def test_resume_needs_no_more_than_the_folder(trained):
    _, _, run = trained
    before = (run / "checkpoints" / "last.safetensors").read_bytes()
    assert main(["train", "--out", str(run), "--resume"]) == 0
    assert (run / "checkpoints" / "last.safetensors").read_bytes() == before


def test_features_of_another_encoder_are_refused(trained, tmp_path, capsys):
    _, _, run = trained
    other = tmp_path / "other"
    other.mkdir()
    with h5py.File(other / "a.h5", "w") as f:
        f["features"] = np.zeros((3, 9), np.float32)
        f["coords"] = np.arange(3)[:, None]
    given = ["predict", str(run), "--features", str(other), "--out", str(tmp_path / "p")]
    kind, error = failed(capsys, *given)
    assert kind == "BagError" and "9" in error and "6" in error
    assert not (tmp_path / "p").exists()


def test_folders_that_are_not_what_they_should_be(tmp_path, capsys):
    out = tmp_path / "m"
    for command in ("predict {0} --features {0} --out {1}", "evaluate {0}", "map {0} --out {1}"):
        assert str(tmp_path) in failed(capsys, *command.format(tmp_path, out).split())[1]
    assert not out.exists()


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
        assert ("a training bag" in given["title"].facts) == (part[bag] == "train")
    assert set(titles) == set(part)


def test_help_and_models(capsys):
    assert main([]) == main(["help"]) == main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(text.count(f"\n    {command}") >= 3 for command in COMMANDS)
    assert all(Command(name).description.partition("\n")[0].endswith(".") for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == probsa.__version__
    assert main(["models", "abmil-probsa-diag", "--json"]) == 0
    samples = json.loads(capsys.readouterr().out)["samples"]
    assert samples == {"type": "int", "default": 16}


def test_the_table_of_commands_is_what_the_folder_has():
    modules = {m.name for m in pkgutil.iter_modules(commands.__path__)}
    assert {m for m in modules if m[0] != "_"} == {name.replace("-", "_") for name in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_describes_every_argument(capsys, command):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: probsa {command} ") and "--json" in text
    undocumented = re.findall(r"^  (--[\w.-]+(?: \S+)?)\n(?=  \S|\n|$)", text, re.MULTILINE)
    assert undocumented == []


def test_help_of_train_lists_keys_of_the_model_that_is_given(capsys):
    def flags(*arguments):
        assert main(["train", *arguments]) == 0
        return set(re.findall(r"^  --([\w-]+)", capsys.readouterr().out, re.MULTILINE))

    default = set(arguments_of(default_recipe()["model.name"]))
    other = {key.replace("_", "-") for key in set(arguments_of("abmil-probsa-diag")) - default}
    other -= {"in-dim"}
    short = flags("--help")
    whole = flags("--help-all")
    assert short < whole and "epochs" in short and "kl-weight" in whole - short
    assert not other & whole
    assert "trunk" in flags("--model", "abmil-probsa-diag", "--help")
    assert other <= flags("--model", "abmil-probsa-diag", "--help-all")


def test_shell_completion_knows_every_command_and_flag(capsys):
    for shell in ("bash", "zsh"):
        assert main(["--print-shtab", shell]) == 0
        script = capsys.readouterr().out
        for words in (*COMMANDS, "--other-features", "--learning-rate", "--tables-only", "knn"):
            assert words in script, (shell, words)
    assert main(["--print-shtab", "fish"]) == 2


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
        *(
            f"train --features {folder / 'data' / 'features'} --labels "
            f"{folder / 'data' / 'labels.csv'} --out {run} --members 2 --epochs 1 "
            "--embed 8 --predict-samples 4 --test-fold 0 --device cpu --tensorboard "
            "false --maps none"
        ).split(),
        *more,
    ]


def test_train_without_a_model_uses_the_default_recipe(tmp_path):
    write_folder(tmp_path / "data")
    run, command = without_model(tmp_path)
    assert main(command) == 0
    recipe = default_recipe()
    metadata = load(run).metadata
    assert (metadata.model, metadata.members) == (recipe["model.name"], 2)
    assert RunFolder(run).config().training.batch_size == recipe["training.batch_size"]
    assert main(["train", "--out", str(run), "--resume", "--maps", "none"]) == 0


def test_a_kl_weight_of_0_means_the_plain_model(tmp_path):
    write_folder(tmp_path / "data")
    run, command = without_model(tmp_path, "--model", "abmil-probsa-diag", "--kl-weight", "0")
    assert main(command) == 0
    assert load(run).metadata.model == "abmil"


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
    kind, error = failed(capsys, *without_model(tmp_path, "--graph", "none")[1])
    assert kind == "GraphError" and "evidence-field" in error and "--model abmil" in error
    assert ("--graph knn" in error) == with_coordinates
    if not with_coordinates:
        kind, error = failed(capsys, *without_model(tmp_path, "--graph", "knn")[1])
        assert kind == "GraphError" and "coordinates" in error


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["predict"], ["RUN", "--features", "--out"]),
        (["evaluate", "p", "x"], ["'x'"]),
        (["evaluate", "p", "--part", "tests"], ["--part", "'test'"]),
        (["evaluate", "p", "--bootstrap", "x"], ["--bootstrap", "'x'"]),
        (["map", "p", "--out", "m", "--geojson=yes"], ["--geojson", "'contours'"]),
        (
            ["map", "p", "--out", "m", "--slides", "s", "--resolution", "2", "--longest", "9"],
            ["--resolution", "--longest"],
        ),
        (["convert", "s", "--out", "o"], ["--from"]),
        (["train", "--out"], ["--out"]),
        (["train", "--maps", "some"], ["--maps", "'test'"]),
        (["train", "extra"], ["'extra'"]),
        (["patch", "s", "--out", "o", "--workers", "0"], ["--workers", "0"]),
        (["patch", "s", "--out", "o", "--shard", "4/4"], ["--shard", "'4/4'"]),
    ],
)
def test_wrong_arguments_are_named(capsys, monkeypatch, tmp_path, arguments, names):
    for name in ("p", "s"):  # the paths are there: they are checked first
        (tmp_path / name).mkdir()
    (tmp_path / "s" / "a.tif").touch()
    monkeypatch.chdir(tmp_path)
    kind, error = failed(capsys, *arguments)
    assert kind in ("InputError", "WrongValue") and all(name in error for name in names)


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
    ("table", "named"),
    [
        ("bag,label\n000,0\n001,one\n", "'one'"),
        ("bag,label\n000,0\n000,1\n", "000"),
        (
            "bag,label,group,split\n"
            + "".join(
                f"{k:03d},{k % 2},g{k // 3},{('train', 'val', 'test')[k % 3]}\n" for k in range(12)
            ),
            "g0",
        ),
    ],
    ids=["a label that is no class", "a bag twice", "a group in two parts"],
)
def test_tables_that_cannot_be_used(trained, tmp_path, capsys, table, named):
    features, _, _ = trained
    labels = tmp_path / "labels.csv"
    labels.write_text(table)
    given = [
        a for a in train_flags(features, labels, tmp_path / "r") if a not in ("--test-fold", "0")
    ]
    _, error = failed(capsys, *given)
    assert "labels.csv" in error and named in error
    assert not (tmp_path / "r").exists()
