"""Every export against instances/*.h5: value by value, by other libraries, for every target.

The names that exports may have, and the datasets that hold their values, are those of the table in
docs/exports.md.
"""

import json
import re
import warnings
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pydicom
import pytest
import tifffile
import torch
from support.made_dicom import write_ct_series, write_dicom_slide
from support.made_exports import QUANTITIES, export, predictions, slide_bag
from support.made_maps import SIDE, lattice, pink, write_folder

from probsa import Bag
from probsa.errors import InputError
from probsa.evaluation import Predictor, read_predictions, stored_trust, verdict_of
from probsa.evaluation.prediction import PER_INSTANCE
from probsa.exports.provenance import provenance
from probsa.exports.quantities import TABLE, channels
from probsa.models import arguments, build, look_up, names
from probsa.slides import list_scans, open_scan
from probsa.training import Standardizer
from probsa.variational import LikelihoodSpec

DOCS = Path(__file__).parents[2] / "docs" / "exports.md"
WIDTH = 6
SMALL = {
    "embed": 8,
    "attention_dim": 4,
    "samples": 2,
    "predict_samples": 16,
    "layers": 1,
    "heads": 2,
}
SPECS = {
    "binary": None,
    "multiclass": None,
    "multilabel": LikelihoodSpec(task="multilabel", n_classes=2),
    "ordinal": LikelihoodSpec(task="ordinal", n_classes=3, starts=(-1.0, 1.0)),
}
CLASSES = {
    "binary": ("benign", "tumour"),
    "multiclass": ("none", "mild", "severe"),
    "multilabel": ("oedema", "necrosis"),
    "ordinal": ("low", "middle", "high"),
}
MODELS = ("evidence-field", "evidence-diag", "abmil", "abmil-probsa-diag", "vmil", "transmil")
"""Scores of all kinds: evidence with and without neighbours, logits, probabilities, weights."""


def documented() -> dict[str, list[str]]:
    """Return the datasets that may hold the values of each name, as the documentation states."""
    datasets = {}
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 4 and not cells[0].startswith("`--"):
            name = re.sub(r" (\(KIND\)|GRADE)", "", cells[0].strip("`"))
            datasets[name] = re.findall(r"`(\w+)`", cells[1])
    return datasets


def test_the_documented_names_are_those_that_are_exported():
    assert list(documented()) == list(TABLE)
    assert set(chain(*documented().values())) <= set(PER_INSTANCE)


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    with h5py.File(file) as f:
        return {k: np.asarray(v) for k, v in f.items() if isinstance(v, h5py.Dataset)}


def stored_values(file: Path, kind: str) -> dict[str, np.ndarray]:
    """Return (n, columns) of each documented name, from the datasets of a file of instances."""
    arrays = read_arrays(file)
    values = {name: arrays.get(datasets[0]) for name, datasets in documented().items()}
    values["std"] = np.sqrt(arrays["attention_variance"])
    if not arrays["attention_variance"].any():
        del values["std"]
    # what is the mean as well has one name
    if kind == "probability":
        values["probability"] = arrays["attention_mean"]
        del values["mean"]
    elif kind in ("weight", "evidence"):
        del values[kind]
    columns = {}
    for name, array in values.items():
        if array is not None:
            label = f"{name} ({kind})" if name in ("mean", "std") else name
            columns[label] = array.reshape(len(array), -1).astype(np.float32)
    return columns


def predictor_of(model: str, task: str) -> Predictor:
    """Return an untrained model, whose scores differ from instance to instance."""
    spec = SPECS[task]
    options: dict[str, Any] = {k: v for k, v in SMALL.items() if k in arguments(model)}
    if spec is not None:
        one_logit = look_up(model).model.one_field and bool(spec.starts)
        options["likelihood"] = {**spec.as_dict(), "one_logit": one_logit}
    elif task == "multiclass":
        options["n_classes"] = 3
    torch.manual_seed(1)
    network = build(model, in_dim=WIDTH, **options)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return Predictor(network, Standardizer(), classes=CLASSES[task])


def features(n: int) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(n, WIDTH)).astype(np.float32)


def predicted(model: str, task: str, coords, *, name: str = "a"):
    """Return the prediction of a bag; models that cannot learn the task are skipped."""
    try:
        predictor = predictor_of(model, task)
    except InputError as error:
        pytest.skip(str(error))
    n = len(coords)
    labels = np.arange(n) % 3 - 1
    bag = Bag.from_arrays(features(n), coords, name=name, instance_labels=labels, stride=None)
    (p,) = predictor.predict(bag)
    return p


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slides")
    write_dicom_slide(folder / "a.dcm", pink())
    return folder


@pytest.fixture(scope="module", params=[(m, t) for m in MODELS for t in SPECS], ids="-".join)
def exported(request, slides, tmp_path_factory):
    """Return the files of a slide in all formats, and the values of its file of instances."""
    model, task = request.param
    p = predicted(model, task, lattice())
    folder = tmp_path_factory.mktemp("export")
    formats = {"ome_tiff": True, "dicom": True, "anndata": "per-bag"}
    out, failures = export(folder, slides, p, classes=CLASSES[task], geojson="tiles", **formats)
    assert failures == []
    stored = stored_values(folder / "preds" / "instances" / "a.h5", p.score_kind)
    return p, task, out, stored, folder / "preds"


def columns_of(values: dict[str, np.ndarray], quantity: str) -> np.ndarray:
    """Return the columns of a quantity from values by name, in their order."""
    columns = [v for k, v in values.items() if k == quantity or k.startswith(f"{quantity} ")]
    return np.stack(columns, axis=1)


def rasters_of(stored: dict[str, np.ndarray]) -> list[tuple[str, str]]:
    """Return the quantities that are channels or files of an image, and their names with kind."""
    return [(key, name) for key in QUANTITIES for name in stored if name.split(" (")[0] == key]


def test_tiles(exported):
    p, task, out, stored, _ = exported
    collection = json.loads((out / "a.geojson").read_text(encoding="utf-8"))
    tables = [f["properties"]["measurements"] for f in collection["features"]]
    exported_values = {}
    for name in tables[0]:
        exported_values[name] = np.array([table[name] for table in tables], np.float32)
    for quantity, values in stored.items():
        columns = columns_of(exported_values, quantity)
        np.testing.assert_array_equal(columns, values, err_msg=quantity)
    expected_count = sum(values.shape[1] for values in stored.values())
    assert len(exported_values) == expected_count  # nothing else
    if stored.get("mean (evidence)", np.empty((1, 1))).shape[1] > 1:
        assert any(name.endswith(CLASSES[task][-1]) for name in exported_values)
    corners = [tile["geometry"]["coordinates"][0][0] for tile in collection["features"]]
    assert corners == p.coords.tolist()
    prediction = collection["probsa"]["prediction"]
    np.testing.assert_allclose(list(prediction.values()), p.probability, rtol=1e-6)


def test_ome_tiff(exported):
    ome_types = pytest.importorskip("ome_types")
    p, _, out, stored, _ = exported
    with tifffile.TiffFile(out / "a.ome.tiff") as file:
        image = file.series[0].levels[0].asarray()
        text = file.ome_metadata
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependencies
        pixels = ome_types.from_xml(text).images[0].pixels
    image = image.reshape(-1, *image.shape[-2:])
    cell = pixels.physical_size_x / 0.5  # in level-0 pixels
    x, y = (p.coords / cell + 0.25).astype(np.int64).T
    exported_values = {c.name: image[k][y, x] for k, c in enumerate(pixels.channels)}
    channel_count = 0
    for _, name in rasters_of(stored):
        np.testing.assert_array_equal(columns_of(exported_values, name), stored[name])
        channel_count += stored[name].shape[1]
    assert len(exported_values) == channel_count


def test_dicom(exported):
    p, _, out, stored, _ = exported
    columns, rows = np.round((p.coords - p.coords.min(0)) / SIDE).astype(int).T
    file_count = 0
    for quantity, name in rasters_of(stored):
        files = sorted(out.glob(f"a_{quantity}*.dcm"))
        for file, values in zip(files, stored[name].T, strict=True):
            dataset = pydicom.dcmread(file)
            shape = (dataset.TotalPixelMatrixRows, dataset.TotalPixelMatrixColumns)
            assert dataset.get("NumberOfFrames", 1) == 1
            frame = np.frombuffer(dataset.FloatPixelData, "<f4").reshape(shape)
            np.testing.assert_array_equal(frame[rows, columns], values, err_msg=file.name)
        file_count += len(files)
    assert len(list(out.glob("a_*.dcm"))) == file_count + ("probability" in stored)
    if "probability" in stored:
        segmentation = pydicom.dcmread(out / "a_segmentation.dcm")
        assert len(segmentation.SegmentSequence) == stored["probability"].shape[1]
        inside = int((stored["probability"] >= 0.5).sum())
        assert int(segmentation.pixel_array.sum()) == inside


def test_anndata(exported):
    anndata = pytest.importorskip("anndata")
    p, _, out, stored, _ = exported
    data = anndata.read_h5ad(out / "a.h5ad")
    for quantity, values in stored.items():
        column = data.obsm[quantity] if quantity in data.obsm else data.obs[quantity].to_numpy()
        np.testing.assert_array_equal(np.asarray(column).reshape(values.shape), values)
    other_columns = {"patch", "bag", "instance_label", "spatial"}
    assert set(data.obs) | set(data.obsm) == other_columns | set(stored)
    labels = data.obs["instance_label"].map({"unknown": -1, "negative": 0, "positive": 1})
    np.testing.assert_array_equal(labels, p.instance_labels)
    np.testing.assert_allclose(data.uns["probsa"]["a"]["probability"], p.probability, rtol=1e-6)


def test_tables_and_frames(exported):
    p, _, _, _, preds = exported
    table = read_predictions(preds)
    frame = table.instances("a").to_frame()
    for name, values in read_arrays(preds / "instances" / "a.h5").items():
        column = name.replace("attention", p.score_name)
        if name == "coords":
            columns = ["x", "y"]
        elif values.ndim == 1:
            columns = [column]
        else:
            columns = [c for c in frame if c.startswith(f"{column}_")][: values.shape[1]]
        np.testing.assert_array_equal(frame[columns].to_numpy(), values.reshape(len(values), -1))
    row = pd.read_csv(preds / "predictions.csv", dtype={"bag": str}).iloc[0]
    columns = [c for c in row.index if c.startswith("p_")] or ["probability"]
    probability = row[columns].to_numpy(dtype=float)[-len(p.probability) :]
    np.testing.assert_allclose(probability, p.probability, rtol=1e-5)


def test_regions(exported, tmp_path):
    from shapely.geometry import shape

    p, task, _, stored, _ = exported
    if "probability" not in stored:
        pytest.skip("no probability")
    out, failures = export(tmp_path, None, p, classes=CLASSES[task], geojson="contours")
    assert failures == []
    expected = []
    for column in stored["probability"].T:
        for level in (0.5, 0.8, 0.9, 0.95):
            patches = int((column >= np.float32(level)).sum())
            if patches > 0:
                expected.append((level, patches))
    regions = json.loads((out / "a.geojson").read_text(encoding="utf-8"))["features"]
    measurements = [region["properties"]["measurements"] for region in regions]
    assert [(m["level"], m["patches"]) for m in measurements] == expected
    text = DOCS.read_text(encoding="utf-8")
    for region, m in zip(regions, measurements, strict=True):
        assert shape(region["geometry"]).area == m["patches"] * SIDE**2 == m["area px²"]
        assert all(f"`{name}`" in text for name in m)


def test_nifti(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    write_ct_series(tmp_path / "cts" / "head", np.arange(7) * 2.5)
    (source,) = list_scans(tmp_path / "cts").sources
    positions = np.asarray(open_scan(source).positions, np.float64)[:, None]
    for task in SPECS:
        p = predicted("evidence-field", task, positions, name=source.name)
        folder = tmp_path / task
        out, failures = export(folder, tmp_path / "cts", p, classes=CLASSES[task], nifti=True)
        assert failures == []
        stored = stored_values(folder / "preds" / "instances" / f"{p.name}.h5", p.score_kind)
        assert [key for key, _ in rasters_of(stored)] == [*QUANTITIES]
        for quantity, name in rasters_of(stored):
            files = sorted(out.glob(f"{p.name}_{quantity}*.nii.gz"))
            for file, values in zip(files, stored[name].T, strict=True):
                data = nibabel.load(file).get_fdata(dtype=np.float32)
                np.testing.assert_array_equal(data[0, 0], values)
                assert (data == data[:1, :1]).all()


@pytest.mark.parametrize("task", SPECS)
@pytest.mark.parametrize("model", names())
def test_no_two_quantities_are_the_same_values(model, task):
    p = predicted(model, task, lattice())
    for a, b in combinations(channels(p, CLASSES[task]), 2):
        if a.column == b.column and np.ptp(a.values) > 0:
            assert not np.allclose(a.values, b.values, rtol=1e-4, atol=1e-7), (a.label, b.label)


def test_each_export_says_what_the_bag_is_called_and_whether_its_map_may_be_trusted(tmp_path):
    folder = predictions(tmp_path / "p", slide_bag())
    table = read_predictions(folder)
    p = table.instances("a")
    entries = provenance(table, p).entries
    assert entries["call"] == verdict_of(table, p).text
    assert entries["trust"] == stored_trust(table).line


@pytest.mark.parametrize("model", ["abmil", None])
def test_each_export_names_its_model_and_its_runs(tmp_path, model):
    """Runs of one model have its name; those of several models have none in common."""
    named = {} if model is None else {"model": model}
    folder = write_folder(tmp_path / "p", slide_bag(), runs=("one", "two"), **named)
    table = read_predictions(folder)
    expected = "2 runs: one, two" if model is None else "abmil (2 runs: one, two)"
    assert provenance(table, table.instances("a")).model == expected
