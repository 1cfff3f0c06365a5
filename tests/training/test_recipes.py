"""The default recipe is the base of a run without a model; paper.yaml states the paper's."""

import shutil
from dataclasses import fields, replace
from pathlib import Path

import jsonschema
import pytest
import yaml
from support.paths import ROOT

from probsa.errors import InputError, UnknownName
from probsa.models import arguments, facts, names, original
from probsa.training import recipes
from probsa.training.config import DataConfig, RunConfig, TrainingConfig
from probsa.training.keys import load_yaml
from probsa.training.recipes import (
    DEFAULT_RECIPE,
    default_recipe,
    find_recipe,
    names_model,
    recipe_files,
    recipe_sentence,
)
from probsa.training.run_folder import EXECUTION_KEYS
from probsa.training.runfile import commented, read_run, run_keys, run_schema, without_prior

NEEDED = {"data.features": "f", "data.labels": "l.csv"}


@pytest.fixture
def file(tmp_path):
    """Write a run file with features and labels; return the function that does it."""

    def write(text):
        path = tmp_path / "run.yaml"
        path.write_text(f"features: f\nlabels: l.csv\n{text}")
        return path

    return write


def test_a_run_without_a_model_has_the_default_recipe():
    config = read_run(None, NEEDED)
    assert config.model == "evidence-field"
    assert config.data.standardize
    training = config.training
    assert training == TrainingConfig(
        epochs=40, batch_size=4, learning_rate=3e-4, kl_weight=0.1, select="ema-nll", members=3
    )
    defaults = {k.short: k.default for k in run_keys("evidence-field").values()}
    assert config.model_arguments == {k: defaults[k] for k in config.model_arguments}
    for key in ("model", "training.members", "training.select"):  # what the recipe must state
        assert {"model": "model.name"}.get(key, key) in default_recipe()


def test_a_regression_by_the_default_recipe_has_one_member(file):
    assert read_run(None, {**NEEDED, "task": "regression"}).training.members == 1
    assert read_run(file("data: {task: regression}"), NEEDED).training.members == 1
    assert read_run(None, {**NEEDED, "task": "survival"}).training.members == 3
    asked = read_run(None, {**NEEDED, "data.task": "regression", "members": 2})
    assert asked.training.members == 2  # training refuses it and says why


def test_a_list_without_brackets_is_refused_with_the_brackets():
    with pytest.raises(InputError, match=r"expected a list .* Write .*: '\[none, low\]'"):
        read_run(None, {**NEEDED, "classes": "none,low"})


def test_the_file_in_the_recipes_folder_is_the_packages():
    link = ROOT / "recipes" / "default.yaml"
    assert link.resolve() == DEFAULT_RECIPE.resolve()
    assert not DEFAULT_RECIPE.is_symlink()  # a wheel contains the file
    assert read_run(link, NEEDED) == read_run(None, NEEDED)
    assert "benchmarks/RESULTS.md" in link.read_text("utf-8")


@pytest.mark.parametrize(
    "text", ["epochs: 7\nridge: 0.5\n", "training: {epochs: 7}\nmodel: {prior: {ridge: 0.5}}\n"]
)
def test_a_file_overrides_the_recipe_key_by_key(file, text):
    base, config = read_run(None, NEEDED), read_run(file(text), {})
    assert config.training == replace(base.training, epochs=7)
    assert config.model_arguments == {**base.model_arguments, "ridge": 0.5}
    assert config.data == base.data


@pytest.mark.parametrize("spelling", ["ridge", "model.ridge", "model.prior.ridge"])
@pytest.mark.parametrize("in_file", ["ridge: 2", "model: {ridge: 2}", "model: {prior: {ridge: 2}}"])
def test_another_spelling_of_a_key_overrides_it(file, monkeypatch, spelling, in_file):
    recipe = {"model.name": "evidence-field", "model.prior.ridge": 3.0, "seed": 4}
    monkeypatch.setattr("probsa.training.runfile.default_recipe", lambda: recipe)
    assert read_run(None, NEEDED).model_arguments["ridge"] == 3
    assert read_run(None, NEEDED).seed == 4
    path = file(in_file)
    assert read_run(path, {}).model_arguments["ridge"] == 2
    config = read_run(path, {spelling: "1.5", "seed": "5", "training.epochs": "3", "members": 2})
    assert config.model_arguments["ridge"] == 1.5 and config.seed == 5
    assert (config.training.epochs, config.training.members) == (3, 2)


def test_a_key_that_is_given_twice_in_one_place_is_refused(file):
    with pytest.raises(InputError, match=r"the key model\.ridge is given twice"):
        read_run(file("model: {ridge: 1, prior: {ridge: 0.5}}\n"), {})
    with pytest.raises(InputError, match=r"the key training\.epochs is given twice"):
        read_run(None, {**NEEDED, "epochs": 3, "training.epochs": 4})


def test_errors_name_the_key_and_its_place(file):
    with pytest.raises(UnknownName, match=r"run\.yaml named 'epohcs'"):
        read_run(file("epohcs: 3\n"), {})
    with pytest.raises(InputError, match=r"epochs in .*run\.yaml is 'x'; expected a whole number"):
        read_run(file("epochs: x\n"), {})
    with pytest.raises(InputError, match=r"^epochs is 0; expected at least 1"):
        read_run(file("epochs: 2\n"), {"training.epochs": 0})


@pytest.mark.parametrize("model", ["abmil", "abmil-probsa-diag", "evidence-field", "clam-sb"])
def test_a_run_with_a_model_has_the_papers_defaults(file, model):
    config = read_run(None, {**NEEDED, "model.name": model})
    defaults = {k.short: k.default for k in run_keys(model).values() if k.name.startswith("model.")}
    assert config == RunConfig(
        data=replace(config.data, standardize=False),
        model=model,
        model_arguments={k: v for k, v in defaults.items() if k not in ("name", "n_classes")},
    )
    assert read_run(file(f"model: {model}\n"), {}) == config
    assert read_run(file("model: null\n"), {"model.name": model}) == config
    if original(model):
        theirs = read_run(None, {**NEEDED, "model.name": model, "preset": "original"})
        assert theirs.training == TrainingConfig()


def test_the_papers_recipe_states_the_defaults():
    path = ROOT / "recipes" / "paper.yaml"
    values = load_yaml(path)
    defaults = TrainingConfig()
    known = {f"training.{f.name}": getattr(defaults, f.name) for f in fields(TrainingConfig)}
    stated = {f"training.{k}": v for k, v in values["training"].items()}
    execution = EXECUTION_KEYS | {"training.tensorboard"}
    assert stated == {k: v for k, v in known.items() if k not in execution}
    data = DataConfig(features=path, labels=path)
    assert values["data"] == {
        "standardize": data.standardize, "weight_scale": data.graph.weight_scale
    }  # fmt: skip
    given = read_run(None, {**NEEDED, "model.name": values["model"]})
    assert read_run(path, NEEDED) == given
    other = read_run(path, {**NEEDED, "model.name": "transmil"})
    assert other == read_run(None, {**NEEDED, "model.name": "transmil"})


def test_whether_a_model_is_named(file):
    assert not names_model(None, NEEDED)
    assert not names_model(file("model: {samples: 3}\n"), {})
    assert names_model(file("model: abmil\n"), {})
    assert names_model(file(""), {"model.name": "abmil"})


def test_the_sentence_has_the_values_of_the_run(monkeypatch):
    config = read_run(None, {**NEEDED, "epochs": 3})
    assert "training evidence-field" in recipe_sentence(config)
    assert "epochs 3," in recipe_sentence(config)
    recipe = {"model.name": "evidence-field", "model.prior.ridge": 3.0, "seed": 4}
    monkeypatch.setattr(recipes, "default_recipe", lambda: recipe)
    assert "(ridge 0.01, seed 0)" in recipe_sentence(config)


def test_the_complete_run_file_names_the_model(tmp_path):
    config = read_run(None, NEEDED)
    path = tmp_path / "run.yaml"
    path.write_text(commented(config))
    assert "name: evidence-field" in path.read_text()
    assert read_run(path, {}) == config


def test_the_schema_without_a_model_is_that_of_files_without_one():
    schema = run_schema(None)
    properties = schema["properties"]
    members = properties["training"]["properties"]["members"]["default"]
    assert members == default_recipe()["training.members"] > 1
    assert properties["data"]["properties"]["standardize"]["default"] is True
    data = {"features": "f", "labels": "l"}
    jsonschema.validate({"data": data}, schema)
    jsonschema.validate({"data": data, "model": {"samples": 3}}, schema)
    jsonschema.validate({"data": data, **yaml.safe_load("training: {epochs: 3}")}, schema)
    for wrong in ({"model": {"name": "abmil"}}, {"training": {"epochs": 0}}, {"model": {"x": 1}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"data": data, **wrong}, schema)
    named = run_schema("evidence-field")
    assert "model" in named["required"]
    assert named["properties"]["training"]["properties"]["members"]["default"] == 1


@pytest.mark.parametrize("name", [name for name in names() if facts(name).baseline])
def test_a_kl_weight_of_0_means_the_plain_model(name):
    flags = {**NEEDED, "training.kl_weight": 0, "model.embed": 24, "seed": 3}
    flags = {k: v for k, v in flags.items() if k != "model.embed" or "embed" in arguments(name)}
    plain = without_prior(read_run(None, {**flags, "model.name": name}))
    assert plain.model == facts(name).baseline
    assert plain == read_run(None, {**flags, "model.name": plain.model})


@pytest.mark.parametrize(("name", "weight"), [("abmil-probsa-diag", 0.1), ("evidence-diag", 0)])
def test_other_runs_keep_their_model(name, weight):
    config = read_run(None, {**NEEDED, "model.name": name, "training.kl_weight": weight})
    assert without_prior(config) is config


def test_the_recipes_of_the_package_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert set(recipe_files()) == {f.stem for f in (ROOT / "recipes").glob("*.yaml")}
    for given in ("standins", "standins.yaml", "recipes/standins.yaml"):
        assert find_recipe(Path(given)).read_text("utf-8").startswith("# The full comparison")
    assert find_recipe(Path("recipes/default.yaml")) == DEFAULT_RECIPE
    own = Path("standins.yaml")
    own.write_text("models: [abmil]\n")
    assert find_recipe(own) == own  # a file of the user comes first
    with pytest.raises(UnknownName, match="Did you mean 'standins'"):
        find_recipe(Path("standin"))
    assert find_recipe(Path("other/standins.yaml")) == Path("other/standins.yaml")


def test_a_wheel_has_the_recipes_inside_the_package(tmp_path, monkeypatch):
    package = tmp_path / "site" / "probsa"
    (package / "recipes").mkdir(parents=True)
    (package / "recipes" / "mine.yaml").write_text("models: [abmil]\n")
    monkeypatch.setattr(recipes, "__file__", str(package / "training" / "recipes.py"))
    assert recipe_files()["mine"] == package / "recipes" / "mine.yaml"
    shutil.rmtree(package / "recipes")
    assert set(recipe_files()) == {"default"}


@pytest.mark.parametrize("name", ["default", "paper"])
def test_every_run_file_of_the_package_fits_its_schema(name):
    given = load_yaml(recipe_files()[name])
    given |= {"data": {**given["data"], "features": "f", "labels": "l.csv"}}
    if isinstance(given.get("model"), str):
        given["model"] = {"name": given["model"]}
    model = None if name == "default" else given["model"]["name"]
    jsonschema.validate(given, run_schema(model))
    given["training"]["epoch"] = 3
    with pytest.raises(jsonschema.ValidationError, match="epoch"):
        jsonschema.validate(given, run_schema(model))
