"""What is released: metadata that agree, a wheel that works without the source tree, pins."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile

import pytest
import yaml
from support.paths import ROOT

import probsa

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built without the network."""
    pytest.importorskip("hatchling", reason="the extra dev is not installed")
    pytest.importorskip("hatch_fancy_pypi_readme", reason="the extra dev is not installed")
    out = tmp_path_factory.mktemp("dist")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert built.returncode == 0, built.stderr
    (file,) = out.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def recipe():
    """The recipe of the package for conda."""
    return yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8"))


def test_all_files_state_the_same_version(recipe):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    assert newest is not None
    assert citation["version"] == probsa.__version__
    assert newest.group(1) == probsa.__version__
    assert recipe["context"]["version"] == probsa.__version__
    assert "version" in PROJECT["dynamic"]


def test_the_metadata_are_complete():
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} == set(PROJECT["urls"])
    assert PROJECT["authors"] == [{"name": "The probsa developers"}]
    for minor in range(11, 15):
        assert f"Programming Language :: Python :: 3.{minor}" in PROJECT["classifiers"]


def test_the_extra_of_everything_has_all_that_users_need():
    everything = PROJECT["optional-dependencies"]["all"][0].removeprefix("probsa[").rstrip("]")
    for_tools = {"all", "dev", "docs", "release", "mlflow", "wandb"}
    assert set(everything.split(",")) == set(PROJECT["optional-dependencies"]) - for_tools


def test_the_recipe_has_the_dependencies_of_the_package(recipe):
    names_of_conda = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
    conda = {}
    for line in recipe["requirements"]["run"]:
        name, _, versions = line.partition(" ")
        name = names_of_conda.get(name, name)
        conda[name.replace("_", "-")] = versions
    dependencies = {}
    for line in PROJECT["dependencies"]:
        name, versions = re.match(r"([\w-]+)(.*)", line).groups()
        dependencies[name.replace("_", "-")] = versions
    assert conda.pop("python") == ">=${{ python_min }}"
    assert conda == dependencies


def test_the_wheel_has_the_package_and_its_recipes_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as z:
        names = set(z.namelist())
    source = ROOT / "src"
    package = {
        f.relative_to(source).as_posix()
        for f in (source / "probsa").rglob("*")
        if f.is_file() and "__pycache__" not in f.parts
    }
    recipes = {f"probsa/recipes/{f.name}" for f in (ROOT / "recipes").glob("*.yaml")}
    info = f"probsa-{probsa.__version__}.dist-info"
    about = {f"{info}/{n}" for n in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")}
    assert names == package | recipes | about | {f"{info}/licenses/LICENSE"}
    with zipfile.ZipFile(wheel) as z:
        metadata = z.read(f"probsa-{probsa.__version__}.dist-info/METADATA").decode()
    text = metadata.partition("\n\n")[2]
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 10 and all(link.startswith("https://") for link in links), links
    paths = re.findall(r"blob/main/([^)#]+)", text)
    assert paths
    for path in paths:
        assert (ROOT / path).exists(), path


def test_the_wheel_works_without_the_source_tree(wheel, tmp_path):
    """From a folder with only the wheel's files: slides, a run, a map, and a recipe by name.

    `.ci/wheel` runs the whole demo in an empty environment.
    """
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as z:
        z.extractall(site)
    script = """
import json
from pathlib import Path
import probsa
from probsa.cli.demo import run_config
from probsa.cli.entry import main
from probsa.datasets import write_digit_slides
from probsa.evaluation import read_predictions
write_digit_slides(Path("data"), bags=12, seed=0)
config = run_config(Path("data"), "abmil-probsa-diag", epochs=1)
probsa.train_and_report(config, Path("run"), maps="none")
bag = read_predictions("run").bags[0]
assert main(["map", "run", "--bag", bag, "--out", "maps"]) == 0
recipe = ["--config", "paper", "--features", "f", "--labels", "l", "--print-config"]
assert main(["train", *recipe]) == 0
maps = [str(m) for m in Path("maps").rglob("*.png")]
print(json.dumps({"file": probsa.__file__, "maps": maps}))
"""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**env, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["file"].startswith(str(site)) and found["maps"]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda f: f.stem)
def test_workflows_are_pinned_and_may_do_little(file):
    text = file.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    used = re.findall(r"uses: (\S+)", text)
    assert used and all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", u) for u in used)
    assert "secrets." not in text
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False


def test_workflows_run_what_is_here():
    text = "".join(f.read_text(encoding="utf-8") for f in WORKFLOWS)
    scripts = set(re.findall(r"bash (\.ci/\w+)", text))
    assert scripts
    for script in scripts:
        assert (ROOT / script).is_file(), script
    tests = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]["tests"]
    matrix = tests["strategy"]["matrix"]
    assert {o.partition("-")[0] for o in matrix["os"]} == {"ubuntu", "macos", "windows"}
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
