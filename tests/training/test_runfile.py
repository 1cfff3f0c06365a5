"""Run files and flags: one schema from the signatures, and errors that say what is expected."""

from pathlib import Path

import jsonschema
import pytest
import yaml

from probsa import models
from probsa.cli.commands._run_flags import parse_with_run_flags
from probsa.cli.commands.train import own_parser
from probsa.core import GraphOptions
from probsa.errors import InputError, UnknownName
from probsa.training.config import RETIRED, RunConfig, without_retired
from probsa.training.keys import flatten, load_yaml
from probsa.training.runfile import checked_run, commented, read_run, run_keys, run_schema

NEEDED = {"data.features": "f", "data.labels": "l.csv", "model.name": "abmil-probsa-diag"}


def parsed(*flags):
    """The arguments of `probsa train` itself, and the keys of the run, after `--out o`."""
    return parse_with_run_flags(own_parser(), ["--out", "o", *flags])


def test_the_schema_is_the_signature():
    for name in models.names():
        known = {k.removeprefix("model.") for k in run_keys(name) if k.startswith("model.")}
        assert known == set(models.arguments(name)) - {"in_dim", "class_weights", "seed"} | {"name"}


def test_short_and_dotted_keys_mean_the_same(tmp_path):
    short, long = tmp_path / "short.yaml", tmp_path / "long.yaml"
    short.write_text("features: f\nlabels: l.csv\nmodel: abmil\nepochs: 5\nkl_weight: 0.5\n")
    long.write_text(
        "data: {features: f, labels: l.csv}\nmodel: {name: abmil}\n"
        "training: {epochs: 5, kl_weight: 0.5}\n"
    )
    assert read_run(short, {}) == read_run(long, {})
    assert read_run(short, {}).training.epochs == 5


def test_flags_win_over_the_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("features: f\nlabels: l.csv\nmodel: {name: abmil-probsa-diag, samples: 4}\n")
    own, run = parsed("--model.samples", "8", "--kl-weight=cyclical", "--standardize", "--json")
    config = read_run(file, run)
    assert config.model_arguments["samples"] == 8
    assert config.data.standardize is True and config.training.kl_weight == "cyclical"
    assert own.json and own.out == Path("o")


def test_types_come_out_as_the_signature_says():
    config = read_run(None, {**NEEDED, "model.embed": "[256,128,64]", "data.classes": "[a,b]",
                             "training.kl_weight": "0.1", "training.patience": "null"})  # fmt: skip
    assert config.model_arguments["embed"] == (256, 128, 64)
    assert config.data.classes == ("a", "b") and config.data.features == Path("f")
    assert config.training.kl_weight == 0.1 and config.training.patience is None
    models.build(config.model, in_dim=3, **config.model_arguments)


def test_a_resolved_run_reads_back_as_itself(tmp_path):
    config = read_run(None, {**NEEDED, "model.embed": "[8,4]", "model.log_variance_bounds": "null"})
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(config.to_dict()))
    assert RunConfig.from_dict(load_yaml(file)) == config
    file.write_text(commented(config))
    assert read_run(file, {}) == config
    assert "# Weight λ of the KL" in file.read_text()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("training.epochs", "x", "epochs is 'x'; expected a whole number"),
        ("training.kl_weight", "cyclic", "Did you mean 'cyclical'"),
        ("model.trunk", "tan", "expected 'tanh', 'gated' or 'mlp'. Did you mean 'tanh'"),
        ("data.graph", "gird", "Did you mean 'grid'"),
        ("training.schedule", "plateu", "Did you mean 'plateau'"),
        ("training.optimizer", "radamm", "Did you mean 'radam'"),
        (
            "training.patience",
            "6.5",
            r"patience is '6.5'; expected a whole number \(at least 1\) or null",
        ),
        ("model.samples", "0", "samples is 0; expected at least 1"),
        ("model.n_classes", "0", "n_classes is 0"),
    ],
)
def test_a_wrong_value(key, value, said):
    with pytest.raises(InputError, match=said):
        read_run(None, {**NEEDED, key: value})


def test_a_misspelt_key_of_a_file_is_named_with_the_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("features: f\nlabels: l\nmodel: abmil\ntraining: {epohcs: 3}\n")
    with pytest.raises(UnknownName, match=r"run\.yaml named 'training.epohcs'.*'training.epochs'"):
        read_run(file, {})
    file.write_text("features: f\nlabels: l\nmodel: abmil\nlerning_rate: 3\n")
    with pytest.raises(UnknownName, match="Did you mean 'learning_rate'"):
        read_run(file, {})
    file.write_text("features: f\nlabels: l\nmodel: abmill\n")
    with pytest.raises(UnknownName, match="Did you mean 'abmil'"):
        read_run(file, {})
    file.write_text("features: f\nlabels: l\nmodel: {name: abmil, kappa: 3}\n")
    with pytest.raises(InputError, match="abmil has no argument kappa in"):  # it has no prior
        read_run(file, {})


def test_files_that_are_no_run_files(tmp_path):
    with pytest.raises(InputError, match="cannot read the run file"):
        read_run(tmp_path / "none.yaml", {})
    file = tmp_path / "run.yaml"
    file.write_text("a: [")
    with pytest.raises(InputError, match="cannot be read as YAML"):
        read_run(file, {})
    file.write_text("- a\n")
    with pytest.raises(InputError, match="not keys and values"):
        read_run(file, {})


def test_what_is_needed_is_asked_for():
    with pytest.raises(InputError, match="no model is given: add --model NAME, one of abmil"):
        checked_run({"data.features": "f"}, origin={})
    with pytest.raises(InputError, match="no labels given: add --labels PATH"):
        read_run(None, {"data.features": "f"})
    with pytest.raises(InputError, match="no labels given: add --labels PATH"):
        read_run(None, {"data.features": "f", "model.name": "abmil"})


def test_flatten():
    assert flatten({"epochs": 5, "model": "abmil", "data": {"features": "f"}, "seed": 1}) == {
        "training.epochs": 5,
        "model.name": "abmil",
        "data.features": "f",
        "seed": 1,
    }


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("epochs", "0", "epochs is 0; expected at least 1"),
        ("batch_size", "0", "batch_size is 0"),
        ("learning_rate", "-1", "learning_rate is -1"),
        ("weight_decay", "-1", "weight_decay is -1"),
        ("patience", "0", "patience is 0; expected at least 1"),
        ("schedule_factor", "2", "schedule_factor is 2.0; expected at least 0 and at most 1"),
        ("schedule_epochs", "0", "schedule_epochs is 0"),
        ("clip_norm", "-1", "clip_norm is -1.0; expected more than 0"),
        ("validation", "2", "validation is 2.0; expected at least 0.01 and at most 0.9"),
        ("threads", "0", "threads is 0"),
        ("workers", "-1", "workers is -1"),
        ("max_instances", "0", "max_instances is 0"),
        ("patience", "0", "patience is 0"),
        ("kl_weight", "-1", "kl_weight is -1"),
        ("seed", "-1", "seed is -1"),
        ("learning_rate", ".inf", "learning_rate is inf"),
        ("members", "0", "members is 0; expected at least 1"),
        ("ema_decay", "1", "ema_decay is 1.0; expected at least 0 and less than 1"),
    ],
)
def test_numbers_that_mean_nothing(key, value, said):
    _, run = parsed(f"--{key}", value)
    with pytest.raises(InputError, match=said):
        read_run(None, {**NEEDED, **run})


@pytest.mark.parametrize("model", ["abmil-probsa-field", "tabmil-probsa-field", "evidence-field"])
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("kappa", "0", "kappa is 0.0; expected more than 0"),
        ("kappa", "-1", "kappa is -1.0; expected more than 0"),
        ("ridge", "-0.1", "ridge is -0.1; expected at least 0"),
        ("ridge", "0", "ridge is 0: the prior of a field must be proper, so give ridge > 0"),
        ("kappa_rate", "0", "kappa_rate is 0.0; expected more than 0 and at most 1"),
        ("kappa_rate", "1.5", "kappa_rate is 1.5; expected more than 0 and at most 1"),
        ("learn_kappa", "perhaps", "learn_kappa is 'perhaps'; expected true or false"),
        ("kappa_rat", "0.1", "kappa_rate"),
    ],
)
def test_options_of_a_field_are_checked_before_training(model, key, value, said):
    own = {**NEEDED, "model.name": model, key: value}
    with pytest.raises((InputError, UnknownName), match=said):
        read_run(None, own)


def test_options_of_a_field_belong_to_fields_only():
    for model in ("abmil-probsa-diag", "evidence-diag"):
        with pytest.raises(InputError, match=f"{model} has no argument learn_kappa, but"):
            read_run(None, {**NEEDED, "model.name": model, "learn_kappa": "false"})
    config = read_run(None, {**NEEDED, "model.name": "evidence-diag", "ridge": "0"})
    assert config.model_arguments["ridge"] == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"members": "2", "select": "last", "patience": "3"}, "leave one of the two out"),
        ({"members": "2", "select": "best"}, "select is 'best'"),
        ({"members": "two"}, "members is 'two'"),
    ],
)
def test_rules_and_members_that_make_no_sense(given, said):
    with pytest.raises(InputError, match=said):
        read_run(None, {**NEEDED, **given})


def test_stored_runs_may_state_a_retired_option_at_the_value_that_is_left():
    with pytest.raises(UnknownName, match="no key of a run named 'lookahead'"):
        read_run(None, {**NEEDED, "lookahead": "null"})
    config = read_run(None, NEEDED)
    stored = config.to_dict()
    spec = {"likelihood": {"ties": "efron", "kind": "cox"}, "bag_loss": "svm", "loss": "ce"}
    left = {"likelihood": {"kind": "cox"}, "bag_loss": "svm"}
    assert without_retired("model", spec) == left
    for name, value in RETIRED.items():
        section, key = name.split(".")
        if section == "likelihood":  # of checkpoints
            continue
        assert key not in stored[section]
        assert RunConfig.from_dict({**stored, section: {**stored[section], key: value}}) == config
        with pytest.raises((UnknownName, InputError)):
            other = RunConfig.from_dict({**stored, section: {**stored[section], key: "x"}})
            checked_run(flatten(other.to_dict()), origin={name: ""})


def test_short_model_keys(tmp_path):
    _, run = parsed("--kappa", "2", "--trunk", "gated")
    config = read_run(None, {**NEEDED, **run})
    assert config.model_arguments["kappa"] == 2 and config.model_arguments["trunk"] == "gated"
    file = tmp_path / "run.yaml"
    file.write_text("features: f\nlabels: l\nmodel: abmil\nembed: [8, 4]\n")
    assert read_run(file, {}).model_arguments["embed"] == (8, 4)


def test_a_flag_without_its_value():
    with pytest.raises(InputError, match="--features needs a value"):
        parsed("--features", "--labels", "l")
    assert parsed("--standardize")[1] == {"data.standardize": "true"}


def test_a_preset_changes_the_defaults_and_what_is_given_goes_before_it(tmp_path):
    flags = {"data.features": tmp_path, "data.labels": tmp_path / "l.csv", "model": None}
    flags = {**{k: str(v) for k, v in flags.items() if v}, "model.name": "clam-sb"}
    plain = read_run(None, flags).model_arguments
    theirs = read_run(None, {**flags, "model.preset": "original"}).model_arguments
    assert (plain["attention_dim"], plain["dropout"], plain["preset"]) == (128, 0.0, "paper")
    assert (theirs["attention_dim"], theirs["dropout"]) == (256, 0.25)
    both = read_run(None, {**flags, "preset": "original", "dropout": 0.5}).model_arguments
    assert (both["attention_dim"], both["dropout"]) == (256, 0.5)
    # what a run file resolves to builds the same model again
    model = models.build("clam-sb", in_dim=6, **theirs)
    assert model.arguments["attention_dim"] == 256
    with pytest.raises(InputError, match=r"preset is 'orginal'; expected .*'original'"):
        read_run(None, {**flags, "model.preset": "orginal"})
    with pytest.raises(InputError, match="abmil-probsa-diag has no argument preset, but abmil"):
        read_run(None, {**flags, "model.name": "abmil-probsa-diag", "model.preset": "original"})


@pytest.mark.parametrize("key", ["5", "true", "? [a, b]\n"])
def test_a_key_that_is_no_text_is_refused(tmp_path, key):
    file = tmp_path / "run.yaml"
    file.write_text(f"model: abmil\n{key}: 1\n")
    with pytest.raises(InputError, match=r"run\.yaml, line 2 .*is not text: write it in quotes"):
        read_run(file, {})


def test_a_key_that_is_there_twice_is_refused(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("model: abmil\ntraining:\n  epochs: 3\n  batch_size: 2\n  epochs: 4\n")
    with pytest.raises(InputError, match=r"run\.yaml, line 5 .*'epochs' is given twice"):
        load_yaml(file)
    file.write_text("epochs: 3\ndata: {features: f}\n")
    assert load_yaml(file) == {"epochs": 3, "data": {"features": "f"}}


def test_options_may_be_nested_or_flat(tmp_path):
    nested, flat = tmp_path / "nested.yaml", tmp_path / "flat.yaml"
    nested.write_text(
        "data: {features: f, labels: l, graph: {kind: knn, neighbours: 4}}\n"
        "model: {name: abmil-probsa-diag, prior: {ridge: 0.5}}\n"
    )
    flat.write_text(
        "features: f\nlabels: l\ngraph: knn\nneighbours: 4\nmodel: abmil-probsa-diag\nridge: 0.5\n"
    )
    config = read_run(nested, {})
    assert config == read_run(flat, {})
    assert config.data.graph == GraphOptions(kind="knn", neighbours=4)
    assert config.model_arguments["ridge"] == 0.5
    flags = ["--data.graph.neighbours", "4", "--graph", "knn", "--model.prior.ridge=0.5"]
    assert read_run(None, {**NEEDED, **parsed(*flags)[1]}).data.graph == config.data.graph
    # a run folder has them flat, so that runs of all versions can be compared
    values = config.to_dict()["data"]
    assert (values["graph"], values["neighbours"], values["stride"]) == ("knn", 4, None)
    assert RunConfig.from_dict(config.to_dict()) == config


def test_a_key_that_is_given_nested_and_flat_is_refused(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("neighbours: 3\ndata: {features: f, labels: l, graph: {neighbours: 4}}\n")
    with pytest.raises(InputError, match=r"the key data\.neighbours is given twice"):
        read_run(file, {})
    file.write_text("model: {name: abmil-probsa-diag, ridge: 1, prior: {ridge: 0.5}}\n")
    with pytest.raises(InputError, match=r"the key model\.ridge is given twice"):
        read_run(file, {})


def test_every_key_says_what_it_means():
    for name in models.names():
        assert [key.name for key in run_keys(name).values() if not key.help] == []


def test_the_schema_holds_for_a_complete_run_file():
    values = read_run(None, {**NEEDED, "model.name": "abmil-probsa-diag"}).to_dict()
    schema = run_schema("abmil-probsa-diag")
    jsonschema.validate(values, schema)
    for section, key, wrong in [
        ("training", "epochs", "many"),
        ("training", "epochs", 0),
        ("training", "kl_weight", -0.5),
        ("data", "weight_scale", 0.0),
        ("data", "graph", "gird"),
        ("model", "trunk", "tan"),
        ("training", "epohcs", 3),
    ]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**values, section: {**values[section], key: wrong}}, schema)


def test_an_argument_of_other_models_is_said_to_be_theirs():
    with pytest.raises(InputError, match="abmil has no argument samples, but abmil-probsa-diag"):
        read_run(None, {**NEEDED, "model.name": "abmil", "samples": 3})
