"""Trackers: made ones stand for MLflow and Weights & Biases; the real ones where installed."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.made_runs import make_config, with_training

from probsa.core import TextTable, note_written
from probsa.errors import InputError, MissingExtra
from probsa.training import RunFolder, train

MLFLOW = "mlflow"
WANDB = "wandb"


@pytest.fixture
def config(tmp_path):
    return make_config(
        tmp_path / "data", bags=9, model="abmil", epochs=2, batch_size=4, tracker=MLFLOW
    )


class MadeError(Exception):
    """What the made trackers raise."""


@pytest.fixture
def mlflow(monkeypatch):
    """The calls of MLflow's client that probsa makes, kept in memory."""
    state = {"experiments": {}, "runs": {}, "active": None}

    def create_experiment(name):
        if state.get("offline"):
            raise MadeError("no server answers\nat all")
        return state["experiments"].setdefault(name, f"x{len(state['experiments'])}")

    def get_experiment_by_name(name):
        known = state["experiments"].get(name)
        return known and SimpleNamespace(experiment_id=known)

    def create_run(experiment, *, run_name, tags):
        about = {"experiment": experiment, "name": run_name, "tags": tags}
        state["runs"]["r0"] = {**about, "metrics": [], "params": {}, "status": ["RUNNING"]}
        return SimpleNamespace(info=SimpleNamespace(run_id="r0"))

    def log_batch(run, *, metrics=(), params=()):
        assert len(params) <= 100
        if metrics and state.get("breaks"):
            raise MadeError("the connection was lost")
        state["runs"][run]["metrics"] += metrics
        state["runs"][run]["params"] |= dict(params)

    def set_status(run, *, status):
        state["runs"][run]["status"].append(status)

    client = SimpleNamespace(
        create_experiment=create_experiment,
        get_experiment_by_name=get_experiment_by_name,
        create_run=create_run,
        log_batch=log_batch,
        update_run=set_status,
        set_terminated=set_status,
    )
    modules = {
        "mlflow": {"MlflowClient": lambda: client, "active_run": lambda: state["active"]},
        "mlflow.entities": {"Metric": lambda *v: v, "Param": lambda key, value: (key, value)},
        "mlflow.exceptions": {"MlflowException": MadeError},
    }
    for name, content in modules.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**content))
    return state


@pytest.fixture
def wandb(monkeypatch):
    runs = []

    def init(**given):
        run = SimpleNamespace(given=given, rows=[], code=None, id=given["id"] or "w0")
        run.log = lambda row, *, step: run.rows.append((step, row))
        run.finish = lambda *, exit_code: setattr(run, "code", exit_code)
        runs.append(run)
        return run

    made = SimpleNamespace(run=None, init=init, Settings=lambda **k: k)
    monkeypatch.setitem(sys.modules, "wandb", made)
    monkeypatch.setitem(sys.modules, "wandb.errors", SimpleNamespace(Error=MadeError))
    return SimpleNamespace(module=made, runs=runs)


def numbers(run: RunFolder, key: str) -> list[float]:
    return [float(row[key]) for row in TextTable.read(run.metrics_file).rows]


def losses(metrics) -> list[tuple[int, float]]:
    return [(step, value) for key, value, _, step in metrics if key == "loss"]


@pytest.mark.parametrize("changes", [{}, {"members": 2}, {"patience": 5}, "mean-pool"], ids=str)
def test_mlflow_has_the_rows_of_metrics_csv(changes, config, mlflow, tmp_path):
    if changes == "mean-pool":  # it is fitted in one go
        config = replace(config, model="mean-pool", model_arguments={})
        changes = {}
    run = train(with_training(config, **changes), tmp_path / "a")
    (logged,) = mlflow["runs"].values()
    assert losses(logged["metrics"]) == list(enumerate(numbers(run, "loss"), start=1)) != []
    assert logged["params"]["training.epochs"] == "2" and logged["name"] == "a"
    assert logged["params"]["model.name"] == config.model
    assert logged["status"] == ["RUNNING", "FINISHED"]
    assert mlflow["experiments"] == {"probsa": logged["experiment"]}


def test_a_resumed_run_goes_on_in_its_own(config, mlflow, tmp_path):
    train(config, tmp_path / "a")
    stored = tmp_path / "a" / "tracker.json"
    assert json.loads(stored.read_text()) == {"tracker": "mlflow", "run": "r0", "epoch": 2}
    # as if the process had been killed before the tracker was told of the last epoch
    stored.write_text(json.dumps({"tracker": "mlflow", "run": "r0", "epoch": 1}))
    note_written(stored)
    mlflow["runs"]["r0"]["metrics"].clear()
    run = train(config, tmp_path / "a", resume=True)
    (logged,) = mlflow["runs"].values()
    assert losses(logged["metrics"]) == [(2, numbers(run, "loss")[1])]
    assert logged["status"] == ["RUNNING", "FINISHED", "RUNNING", "FINISHED"]


def test_it_is_a_child_of_the_active_run_or_in_the_experiment_of_the_environment(
    config, mlflow, tmp_path, monkeypatch
):
    info = SimpleNamespace(run_id="mine", experiment_id="x7")
    mlflow["active"] = SimpleNamespace(info=info)
    train(config, tmp_path / "a")
    (logged,) = mlflow["runs"].values()
    assert (logged["experiment"], logged["tags"]) == ("x7", {"mlflow.parentRunId": "mine"})
    mlflow["active"] = None
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "lungs")
    train(config, tmp_path / "b")
    assert list(mlflow["experiments"]) == ["lungs"]


def test_a_run_that_cannot_begin_or_fails(config, mlflow, tmp_path):
    with pytest.raises(InputError, match="epoch 1"):
        train(with_training(config, learning_rate=1e30, warmup_epochs=0), tmp_path / "a")
    (logged,) = mlflow["runs"].values()
    assert logged["status"] == ["RUNNING", "FAILED"]
    mlflow["offline"] = True
    mlflow["experiments"].clear()
    with pytest.raises(InputError, match=r"no server answers.*MLFLOW_TRACKING_URI"):
        train(config, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_training_goes_on_without_a_server_that_stops(config, mlflow, tmp_path, caplog):
    mlflow["breaks"] = True
    run = train(config, tmp_path / "a")
    assert len(numbers(run, "loss")) == 2
    (record,) = caplog.records
    assert "the connection was lost" in record.getMessage()


def test_wandb_has_the_rows_of_metrics_csv(config, wandb, tmp_path):
    run = train(with_training(config, tracker=WANDB), tmp_path / "a")
    (logged,) = wandb.runs
    assert [(step, row["loss"]) for step, row in logged.rows] == list(
        enumerate(numbers(run, "loss"), start=1)
    )
    assert logged.given["config"]["training"]["epochs"] == 2
    assert (logged.given["name"], logged.given["project"], logged.code) == ("a", "probsa", 0)
    again = train(with_training(config, tracker=WANDB), tmp_path / "a", resume=True)
    assert wandb.runs[1].given["id"] == "w0" and wandb.runs[1].rows == []
    assert again.path == run.path


def test_wandb_leaves_the_users_run_open(config, wandb, tmp_path):
    updated = []
    own = wandb.module.init(id="mine")
    own.config = SimpleNamespace(update=lambda values, **_: updated.append(values))
    wandb.module.run = own
    train(with_training(config, tracker=WANDB), tmp_path / "a")
    assert [(step, row["epoch"]) for step, row in own.rows] == [(None, 1), (None, 2)]
    assert own.code is None and updated[0]["model"]["name"] == "abmil"


@pytest.mark.parametrize(("tracker", "module"), [(MLFLOW, "mlflow"), (WANDB, "wandb")])
def test_a_tracker_that_is_not_installed_names_its_extra(
    tracker, module, config, tmp_path, monkeypatch
):
    for name in (module, f"{module}.errors", f"{module}.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=tracker):
        train(with_training(config, tracker=tracker), tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tracker", [MLFLOW, WANDB])
def test_the_programs_themselves(tracker, config, tmp_path, monkeypatch):
    program = pytest.importorskip(tracker)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = train(with_training(config, tracker=tracker), tmp_path / "a")
    name = json.loads((run.path / "tracker.json").read_text())["run"]
    if tracker == WANDB:
        (written,) = run.path.glob(f"wandb/offline-run-*/run-{name}.wandb")
        assert b"val_auroc" in written.read_bytes()
        return
    client = program.MlflowClient()
    logged = [(m.step, m.value) for m in client.get_metric_history(name, "loss")]
    assert logged == list(enumerate(numbers(run, "loss"), start=1))
    assert client.get_run(name).info.status == "FINISHED"
    assert client.get_experiment_by_name("probsa") is not None
