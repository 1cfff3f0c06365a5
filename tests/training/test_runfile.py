"""Run files, flags and recipes: one schema from the signatures, and errors that say what to do."""

from dataclasses import dataclass, field, fields
from pathlib import Path

import h5py
import jsonschema
import numpy as np
import pytest
import yaml
from support.paths import ROOT

from probsa import models, removed
from probsa.cli.command import Command
from probsa.core import GraphOptions
from probsa.datasets import MOST_VALIDATION
from probsa.errors import InputError, TableError, UnknownName
from probsa.training import (
    DataConfig,
    RunConfig,
    RunFolder,
    TrainingConfig,
    check_files,
    checked_run,
    commented,
    default_recipe,
    find_recipe,
    flatten,
    load_yaml,
    names_model,
    plain,
    read_labels,
    read_run,
    recipe_files,
    recipe_sentence,
    recipes,
    run_keys,
    run_schema,
    without_prior,
)
from probsa.training import config as config_module
from probsa.training.config import without_removed
from probsa.training.recipes import DEFAULT_RECIPE
from probsa.training.run_folder import EXECUTION_KEYS

DATA = {"data.features": "f", "data.labels": "l.csv"}
NEEDED = {**DATA, "model.name": "abmil-probsa-diag"}


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a run file."""

    def write(text, *, data="features: f\nlabels: l.csv\n"):
        path = tmp_path / "run.yaml"
        path.write_text(f"{data}{text}")
        return path

    return write


def flags_of(*flags):
    return Command("train").parse(["--out", "o", *flags])[1]


def test_every_argument_of_a_model_is_a_documented_key():
    for name in models.names():
        keys = run_keys(name)
        arguments = {key.short for key in keys.values() if key.section == "model"}
        offered = set(models.arguments(name)) - {"in_dim", "class_weights", "seed"}
        assert arguments == offered | {"name"}
        assert [key.name for key in keys.values() if not key.help] == []


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (
            "model: abmil\nepochs: 5\nkl_weight: 0.5\n",
            "model: {name: abmil}\ntraining: {epochs: 5, kl_weight: 0.5}\n",
        ),
        (
            "graph: knn\nneighbours: 4\nmodel: abmil-probsa-diag\nridge: 0.5\n",
            "data: {graph: knn, neighbours: 4}\nmodel: {name: abmil-probsa-diag, ridge: 0.5}\n",
        ),
        (
            "model: abmil\nlearning_rate: 1e-3\nepochs: 7\n",
            "model: abmil\nlearning_rate: '0.001'\nepochs: '7'\n",
        ),
        ("model: abmil\nfeature_set: 20\n", "model: abmil\nfeature_set: '20'\n"),
        ("model: abmil\nseed: 1\ntraining: {}\n", "model: abmil\nseed: 1\n"),
    ],
)
def test_spellings_that_mean_the_same(write, text, same):
    config = read_run(write(text), {})
    assert config == read_run(write(same), {})
    assert config != read_run(write("model: abmil\n"), {})


def test_types_are_those_of_the_signature_and_flags_win(tmp_path, write):
    line = (
        "--out o --model.samples 8 --kl-weight=cyclical --standardize --json --embed [256,128,64] "
        "--classes [a,b] --patience null --target 5 --data.neighbours 4 --graph knn "
        "--model.ridge=0.5"
    )
    options, flags = Command("train").parse(line.split())
    config = read_run(write("model: {name: abmil-probsa-diag, samples: 4, embed: [8, 4]}\n"), flags)
    assert options.json and options.out == "o"
    assert config.data.standardize is True and config.training.kl_weight == "cyclical"
    assert config.model_arguments["samples"] == 8
    assert config.model_arguments["embed"] == (256, 128, 64)
    assert config.model_arguments["ridge"] == 0.5
    assert config.data.classes == ("a", "b") and config.data.features == Path("f")
    assert config.data.targets.target == "5" and config.training.patience is None
    assert config.data.graph == GraphOptions(kind="knn", neighbours=4)
    # a run folder has options flat
    values = config.to_dict()["data"]
    assert (values["graph"], values["neighbours"], values["stride"]) == ("knn", 4, None)
    file = tmp_path / "again.yaml"
    file.write_text(yaml.safe_dump(config.to_dict()))
    assert RunConfig.from_dict(load_yaml(file)) == config
    file.write_text(commented(config))
    assert read_run(file, {}) == config
    assert "# Weight λ" in file.read_text()


@pytest.mark.parametrize("classes", ["a b", "a,b", "[a,b]", "a, b", "no yes", "0,1,2", "[0, 1]"])
def test_a_list_of_names_is_written_in_any_of_three_ways(classes, write):
    words = [classes] if classes.startswith("[") else classes.split(" ")
    flags = flags_of("--classes", *words, "--epochs", "3")
    names = tuple(classes.strip("[]").replace(",", " ").split())
    config = read_run(write("model: abmil\n"), flags)
    assert (config.data.classes, config.training.epochs) == (names, 3)
    file = write(f"model: abmil\ndata: {{classes: [{', '.join(map(repr, names))}]}}\n")
    assert read_run(file, {}).data.classes == names


def test_a_run_file_may_name_classes_by_numbers(write):
    assert read_run(write("model: abmil\nclasses: [0, 1, 2]\n"), {}).data.classes == tuple("012")


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        ("abmil", "epochs", "x"),
        ("abmil", "epochs", "0"),
        ("abmil", "kl_weight", "cyclic"),
        ("abmil", "kl_weight", "-1"),
        ("abmil", "trunk", "tan"),
        ("abmil", "graph", "gird"),
        ("abmil", "patience", "6.5"),
        ("abmil", "validation", "2"),
        ("abmil", "validation", "0.51"),
        ("abmil", "ema_decay", "1"),
        ("abmil", "embed", "8,x"),
        ("abmil", "samples", "3"),  # an argument of other models
        ("abmil-probsa-diag", "initial_log_variance", "-11"),
        ("abmil-probsa-diag", "preset", "original"),
        ("evidence-diag", "learn_kappa", "false"),
        ("evidence-field", "ridge", "0"),
        ("evidence-field", "learn_kappa", "perhaps"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(model, key, value):
    with pytest.raises(InputError, match=key):
        read_run(None, {**DATA, "model.name": model, **flags_of(f"--{key}", value)})


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("epochs: x\n", "epochs"),
        ("epochs: 0\n", "epochs"),
        ("model: {name: abmil, kappa: 3}\n", "kappa"),
        ("model: abmil\ntraining:\n  epochs: 3\n  epochs: 4\n", "epochs"),
        ("5: 1\n", "5"),
        ("a: [", ""),
    ],
)
def test_a_wrong_value_in_a_file_is_refused_with_key_and_file(write, text, key):
    file = write(text)
    with pytest.raises(InputError) as refused:
        read_run(file, {})
    assert key in str(refused.value) and str(file) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("model: {name: tabmil, embed: 8, heads: 3}\n", "heads"),
        ("neighbours: 3\ndata: {neighbours: 4}\n", "data.neighbours"),
        ("model: {name: abmil-probsa-diag, ridge: 1}\nridge: 0.5\n", "model.ridge"),
        ("model: abmil\nselect: last\npatience: 3\n", "patience"),
    ],
)
def test_values_that_do_not_fit_one_another_are_refused(write, text, key):
    with pytest.raises(InputError, match=key):
        read_run(write(text), {})


@pytest.mark.parametrize(
    ("text", "name", "suggestion"),
    [
        ("model: abmil\ntraining: {epohcs: 3}\n", "training.epohcs", "training.epochs"),
        ("model: abmil\nlerning_rate: 3\n", "lerning_rate", "learning_rate"),
        ("model: abmill\n", "abmill", "abmil"),
        ("model: abmil\nzzzz: null\n", "zzzz", None),
    ],
)
def test_an_unknown_name_in_a_file_is_refused_with_a_suggestion(write, text, name, suggestion):
    file = write(text)
    with pytest.raises(UnknownName) as refused:
        read_run(file, {})
    assert (refused.value.name, refused.value.suggestion) == (name, suggestion)
    assert str(file) in str(refused.value)


def test_files_that_are_no_run_files_and_values_that_are_missing(tmp_path, write):
    missing = tmp_path / "none.yaml"
    with pytest.raises(InputError, match=str(missing)):
        read_run(missing, {})
    for text in ("- a\n", ""):
        with pytest.raises(InputError, match=r"run\.yaml"):
            read_run(write(text, data=""), {})
    with pytest.raises(InputError, match="--model"):
        checked_run({"data.features": "f"})
    for values in ({"data.features": "f"}, {"data.features": "f", "model.name": "abmil"}):
        with pytest.raises(InputError, match="--labels"):
            read_run(None, values)
    with pytest.raises(InputError, match="--features"):
        flags_of("--features", "--labels", "l")
    with pytest.raises(InputError, match="trunk in the grid"):
        checked_run({**DATA, "model.name": "abmil", "model.trunk": "tan"}, where=" in the grid")


def test_stored_runs_may_state_a_removed_option_at_the_value_that_is_left(monkeypatch):
    former = {"model.bag_loss": "ce", "training.ahead": None}
    monkeypatch.setattr(config_module, "FORMER_VALUES", former)
    monkeypatch.setattr(removed, "REMOVED", {"bag_loss": "the model svm", "ahead": "nothing"})
    config = read_run(None, NEEDED)
    stored = config.to_dict()
    spec = {"training": {"ahead": None, "epochs": 3}, "bag_loss": "svm", "loss": "ce"}
    assert without_removed("model", spec) == {
        "training": {"epochs": 3},
        "bag_loss": "svm",
        "loss": "ce",
    }
    for section, key, value in (("model", "bag_loss", "ce"), ("training", "ahead", None)):
        assert RunConfig.from_dict({**stored, section: {**stored[section], key: value}}) == config
        with pytest.raises(UnknownName) as refused:
            other = RunConfig.from_dict({**stored, section: {**stored[section], key: "x"}})
            checked_run(flatten(other.to_dict()))
        assert key in str(refused.value) and removed.REMOVED[key] in str(refused.value)


def test_a_stored_run_with_hazards_is_read_and_one_with_cox_is_refused_by_name():
    stored = read_run(None, NEEDED).to_dict()
    with_hazards = {**stored, "data": {**stored["data"], "survival": "hazards"}}
    assert RunConfig.from_dict(with_hazards).to_dict() == stored
    with pytest.raises(UnknownName) as refused:
        RunConfig.from_dict({**stored, "data": {**stored["data"], "survival": "cox"}})
    assert refused.value.removed


def test_a_stored_run_with_a_share_that_could_not_be_used_is_read():
    """Version 0.2 accepted shares up to 0.9, which only tables with validation bags allowed."""
    stored = read_run(None, NEEDED).to_dict()
    with_share = {**stored, "data": {**stored["data"], "validation": 0.7}}
    assert RunConfig.from_dict(with_share).data.validation == MOST_VALIDATION
    with_share["data"]["validation"] = 1.5
    with pytest.raises(InputError, match="validation"):
        RunConfig.from_dict(with_share)


def test_the_default_of_a_key_is_a_value_however_its_field_states_it():
    @dataclass(kw_only=True)
    class Options:
        names: tuple[str, ...] = field(default_factory=lambda: ("a", "b"))
        epochs: int

    names, epochs = config_module._keys_of(Options)
    assert (names.default, names.required) == (("a", "b"), False)
    assert (epochs.default, epochs.required) == (None, True)


def test_a_run_folder_with_a_removed_option_is_not_called_damaged(tmp_path):
    stored = read_run(None, NEEDED).to_dict()
    stored["data"]["survival"] = "cox"
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(stored))
    with pytest.raises(InputError) as refused:
        RunFolder(tmp_path).config()
    cause = refused.value.__cause__
    assert isinstance(cause, UnknownName) and cause.removed
    assert "damaged" not in str(refused.value)


@pytest.mark.parametrize("name", removed.REMOVED)
def test_each_removed_name_is_answered_with_what_to_use_instead(name):
    flag = f"--{name.replace('_', '-')}"
    for spelling in (name, flag, f"training.{name}"):
        error = UnknownName("command", spelling, ["train"])
        assert error.removed and removed.REMOVED[name] in str(error)


@pytest.mark.parametrize(
    ("section", "content", "key"),
    [
        ("data", 3, "data"),
        ("model", {}, "model"),
        ("data", {"features": "f"}, "data.labels"),
        ("training", {"epohcs": 3}, "training.epohcs"),
        ("training", {"epochs": "x"}, "epochs"),
        ("seed", "x", "seed"),
    ],
)
def test_damaged_stored_runs_are_refused(section, content, key):
    stored = read_run(None, NEEDED).to_dict()
    with pytest.raises((InputError, UnknownName), match=key):
        RunConfig.from_dict({**stored, section: content})


def test_a_preset_changes_the_defaults_and_what_is_given_goes_before_it():
    flags = {**DATA, "model.name": "clam-sb"}
    plain = read_run(None, flags).model_arguments
    theirs = read_run(None, {**flags, "model.preset": "original"})
    assert (plain["attention_dim"], plain["dropout"], plain["preset"]) == (128, 0.0, "paper")
    own = theirs.model_arguments
    assert (own["attention_dim"], own["dropout"], theirs.training) == (256, 0.25, TrainingConfig())
    both = read_run(None, {**flags, "preset": "original", "dropout": 0.5}).model_arguments
    assert (both["attention_dim"], both["dropout"]) == (256, 0.5)
    assert models.build("clam-sb", in_dim=6, **own).arguments["attention_dim"] == 256


def test_the_schema_holds_for_run_files():
    values = read_run(None, NEEDED).to_dict()
    schema = run_schema("abmil-probsa-diag")
    jsonschema.validate(values, schema)
    for section, key, wrong in [
        ("training", "epochs", "many"),
        ("training", "kl_weight", -0.5),
        ("training", "prevalence", [0.5, 2]),
        ("data", "weight_scale", 0.0),
        ("data", "graph", "gird"),
        ("model", "trunk", "tan"),
        ("model", "log_variance_bounds", [1]),
        ("training", "epohcs", 3),
    ]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**values, section: {**values[section], key: wrong}}, schema)
    without = run_schema(None)
    named = run_schema("evidence-field")  # of files without a model
    data = {"features": "f", "labels": "l"}
    for right in ({}, {"model": {"samples": 3}}, {"training": {"epochs": 3}}):
        jsonschema.validate({"data": data, **right}, without)
    for wrong in ({"model": {"name": "abmil"}}, {"training": {"epochs": 0}}, {"model": {"x": 1}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"data": data, **wrong}, without)
    members = [s["properties"]["training"]["properties"]["members"] for s in (without, named)]
    assert [m["default"] for m in members] == [default_recipe()["training.members"], 1] == [3, 1]
    assert "model" in named["required"] and "model" not in without["required"]


def test_a_run_without_a_model_has_the_default_recipe(write, monkeypatch):
    config = read_run(None, DATA)
    assert config.model == "evidence-field" and config.data.standardize
    assert config.training == TrainingConfig(
        epochs=40,
        batch_size=4,
        learning_rate=3e-4,
        kl_weight=0.1,
        select="ema-nll",
        members=3,
        assume=("none", "one_region", "negatives"),
    )
    keys = run_keys("evidence-field")
    assert all(v == keys[f"model.{k}"].default for k, v in config.model_arguments.items())
    # files and flags override it key by key; a regression has one member
    assert read_run(write("epochs: 2\n"), {"seed": 1}).training.epochs == 2
    assert read_run(write("epochs: 2\n"), {"training.epochs": 3}).training.epochs == 3
    assert read_run(write("model: {samples: 3}\n"), {}).model_arguments["samples"] == 3
    assert read_run(None, {**DATA, "task": "regression"}).training.members == 1
    assert read_run(None, {**DATA, "task": "regression", "members": 2}).training.members == 2
    assert read_run(None, {**DATA, "task": "survival"}).training.members == 3
    sentence = recipe_sentence(read_run(None, {**DATA, "epochs": 3}))
    assert "evidence-field" in sentence and "epochs 3," in sentence
    assert read_run(write(commented(config), data=""), {}) == config
    recipe = {"model.name": "evidence-field", "ridge": 3.0, "seed": 4}
    for module in ("recipes", "runfile", "given"):
        monkeypatch.setattr(f"probsa.training.{module}.default_recipe", lambda: recipe)
    assert read_run(None, {**DATA, "ridge": 2}).model_arguments["ridge"] == 2
    assert "(ridge 3.0, seed 4)" in recipe_sentence(read_run(None, DATA))


def test_a_run_with_a_model_has_the_papers_defaults(write):
    assert not names_model(None, DATA)
    assert not names_model(write("model: {samples: 3}\n"), {})
    assert names_model(write("model: abmil\n"), {}) and names_model(None, NEEDED)
    for model in ("abmil", "evidence-field", "clam-sb"):
        config = read_run(None, {**DATA, "model.name": model})
        assert config.training == TrainingConfig() and not config.data.standardize
        assert read_run(write(f"model: {model}\n"), {}) == config
        assert read_run(write("model: null\n"), {"model.name": model}) == config


def test_the_papers_recipe_states_the_defaults():
    path = ROOT / "recipes" / "paper.yaml"
    values = load_yaml(path)
    defaults = {}
    for f in fields(TrainingConfig):
        if f"training.{f.name}" not in EXECUTION_KEYS | {"training.tensorboard"}:
            defaults[f.name] = getattr(TrainingConfig(), f.name)
    assert values["training"] == plain(defaults)
    data = DataConfig(features=path, labels=path)
    expected = {"standardize": data.standardize, "weight_scale": data.graph.weight_scale}
    assert values["data"] == expected
    for model in (values["model"], "transmil"):
        flags = {**DATA, "model.name": model}
        assert read_run(path, flags) == read_run(None, flags)


@pytest.mark.parametrize("name", [n for n in models.names() if models.look_up(n).baseline])
def test_a_kl_weight_of_0_means_the_plain_model(name):
    embed = {"model.embed": 24} if "embed" in models.arguments(name) else {}
    flags = {**DATA, "training.kl_weight": 0, "seed": 3, **embed}
    plain = without_prior(read_run(None, {**flags, "model.name": name}))
    assert plain == read_run(None, {**flags, "model.name": models.look_up(name).baseline})
    other = read_run(None, {**flags, "model.name": name, "training.kl_weight": 0.1})
    assert without_prior(other) is other


def test_recipes_are_found_by_name_and_fit_their_schema(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert set(recipe_files()) == {f.stem for f in (ROOT / "recipes").glob("*.yaml")}
    for given in ("standins", "standins.yaml", "recipes/standins.yaml"):
        assert find_recipe(Path(given)).read_text("utf-8").startswith("# The full comparison")
    assert find_recipe(Path("recipes/default.yaml")) == DEFAULT_RECIPE
    own = Path("standins.yaml")
    own.write_text("models: [abmil]\n")
    assert find_recipe(own) == own  # a file of the user comes first
    with pytest.raises(UnknownName) as refused:
        find_recipe(Path("standin"))
    assert refused.value.suggestion == "standins"
    assert find_recipe(Path("other/standins.yaml")) == Path("other/standins.yaml")
    for name in ("default", "paper"):
        values = load_yaml(recipe_files()[name])
        values |= {"data": {**values["data"], "features": "f", "labels": "l.csv"}}
        if isinstance(values["model"], str):
            values["model"] = {"name": values["model"]}
        schema = run_schema(None if name == "default" else values["model"]["name"])
        jsonschema.validate(values, schema)
        with pytest.raises(jsonschema.ValidationError, match="epoch"):
            jsonschema.validate({**values, "training": {"epoch": 3}}, schema)
    # a wheel has them inside the package
    package = tmp_path / "site" / "probsa"
    (package / "recipes").mkdir(parents=True)
    (package / "recipes" / "mine.yaml").write_text("models: [abmil]\n")
    monkeypatch.setattr(recipes, "__file__", str(package / "training" / "recipes.py"))
    assert recipe_files()["mine"] == package / "recipes" / "mine.yaml"


@pytest.mark.parametrize("cell", ["", "NA", "[Not Available]"])
@pytest.mark.parametrize("unlabelled", ["leave_out", "refuse"])
def test_the_quick_check_of_labels_agrees_with_training(tmp_path, cell, unlabelled):
    """What is refused before PyTorch is imported is what training would refuse."""
    (tmp_path / "features").mkdir()
    for name in "abcde":
        with h5py.File(tmp_path / "features" / f"{name}.h5", "w") as file:
            file["features"] = np.zeros((3, 2), np.float32)
    labels = tmp_path / "labels.csv"
    labels.write_text(f"bag,label\na,tumor\nb,normal\nc,{cell}\nd,tumor\ne,normal\n")
    keys = {"features": str(tmp_path / "features"), "labels": str(labels)}
    data = read_run(None, {**keys, "unlabelled": unlabelled}).data
    if unlabelled == "refuse":
        for read in (check_files, read_labels):
            with pytest.raises(TableError, match="line 4"):
                read(data)
    else:
        check_files(data)
        table = read_labels(data)
        assert [label is None for label in table.labels] == [False, False, True, False, False]
