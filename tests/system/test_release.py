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


def test_the_versions_agree_and_the_metadata_are_complete():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8"))
    versions = {citation["version"], newest.group(1), recipe["context"]["version"]}
    assert versions == {probsa.__version__} and "version" in PROJECT["dynamic"]
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} == set(PROJECT["urls"])
    assert PROJECT["authors"] == [{"name": "The probsa developers"}]
    for minor in range(11, 15):
        assert f"Programming Language :: Python :: 3.{minor}" in PROJECT["classifiers"]
    everything = PROJECT["optional-dependencies"]["all"][0].removeprefix("probsa[").rstrip("]")
    for_tools = {"all", "dev", "docs", "release", "mlflow", "wandb"}
    assert set(everything.split(",")) == set(PROJECT["optional-dependencies"]) - for_tools
    other_names = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
    theirs = set()
    for line in recipe["requirements"]["run"]:
        name, _, range_ = line.partition(" ")
        name = other_names.get(name, name)
        theirs.add((name.replace("_", "-"), range_))
    ours = {re.match(r"([\w-]+)(.*)", d).groups() for d in PROJECT["dependencies"]}
    assert theirs - {("python", ">=${{ python_min }}")} == {
        (name.replace("_", "-"), range_) for name, range_ in ours
    }


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
    for path in re.findall(r"blob/main/([^)#]+)", text):
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
    for script in set(re.findall(r"bash (\.ci/\w+)", text)):
        assert (ROOT / script).is_file(), script
    tests = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]["tests"]
    matrix = tests["strategy"]["matrix"]
    assert {o.partition("-")[0] for o in matrix["os"]} == {"ubuntu", "macos", "windows"}
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
