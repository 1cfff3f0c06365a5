"""AnnData files, read again by anndata and, for what is in the file, by h5py."""

from dataclasses import replace

import h5py
import numpy as np
import pytest
from support.made_exports import MODEL, evidence, export, slide_bag
from support.made_maps import SIDE, bag, lattice, scan_bag

from probsa.core import write_bag
from probsa.errors import InputError

anndata = pytest.importorskip("anndata", reason="the extra `anndata` is not installed")


def features_of(folder, p, *, width=5, seed=0):
    values = np.random.default_rng(seed).normal(size=(len(p.coords), width)).astype(np.float32)
    write_bag(
        folder / f"{p.name}.h5",
        features=values,
        kind=p.kind,
        coords=p.coords,
        attributes={"pitch": float(SIDE)} if p.kind == "slide" else {},
    )
    return values


def test_a_slide_with_features_and_values_of_each_patch(tmp_path):
    labels = np.array([1, 0, -1] * 10)
    p = replace(slide_bag(), instance_labels=labels, weight_mean=np.linspace(0, 1, 30, dtype="f4"))
    values = features_of(tmp_path / "features", p)
    out, failures = export(tmp_path, None, p, features=tmp_path / "features", anndata="per-bag")
    assert failures == []
    read = anndata.read_h5ad(out / "a.h5ad")
    np.testing.assert_array_equal(read.X, values)
    np.testing.assert_array_equal(read.obs["mean (evidence)"], p.attention_mean)
    np.testing.assert_array_equal(read.obs["std (evidence)"], np.sqrt(p.attention_variance))
    np.testing.assert_array_equal(read.obs["probability"], p.instance_probability)
    np.testing.assert_array_equal(read.obs["weight"], p.weight_mean)
    assert read.obs["mean (evidence)"].dtype == np.float32
    assert list(read.obs["instance_label"][:3]) == ["positive", "negative", "unknown"]
    assert list(read.obs["patch"]) == list(range(30))
    assert list(read.obs_names[:2]) == ["a:0", "a:1"]
    np.testing.assert_array_equal(read.obsm["spatial"], p.coords + SIDE / 2)
    spot = read.uns["spatial"]["a"]["scalefactors"]["spot_diameter_fullres"]
    assert spot == SIDE
    origin = read.uns["probsa"]["a"]
    assert origin["model"] == MODEL and origin["score_kind"] == "evidence"
    assert "Research use only" in origin["statement"]
    with h5py.File(out / "a.h5ad") as f:
        assert f.attrs["encoding-type"] == "anndata"
        np.testing.assert_array_equal(f["obs/mean (evidence)"][...], p.attention_mean)


def test_all_slides_in_one_file(tmp_path):
    a, b = slide_bag(name="a"), slide_bag(name="b", columns=3, rows=2)
    both = [features_of(tmp_path / "features", p, seed=k) for k, p in enumerate((a, b))]
    out, failures = export(tmp_path, None, a, b, anndata="one-file", features=tmp_path / "features")
    assert failures == [] and [f.name for f in out.glob("[!.]*")] == ["maps.h5ad"]
    read = anndata.read_h5ad(out / "maps.h5ad")
    np.testing.assert_array_equal(read.X, np.concatenate(both))
    assert read.obs_names.is_unique and read.n_obs == 36
    assert read.obs["bag"].value_counts().to_dict() == {"a": 30, "b": 6}
    np.testing.assert_array_equal(read[read.obs["bag"] == "b"].obsm["spatial"], b.coords + SIDE / 2)
    assert set(read.uns["spatial"]) == set(read.uns["probsa"]) == {"a", "b"}


def test_without_features_and_without_what_the_model_lacks(tmp_path):
    p = replace(bag(lattice()), name="a", attention_variance=np.zeros(30, np.float32))
    out, _ = export(tmp_path / "plain", None, p, anndata="per-bag")
    read = anndata.read_h5ad(out / "a.h5ad")
    assert read.shape == (30, 0)
    assert not {"std (logit)", "probability"} & set(read.obs)
    assert "no variance" in read.uns["probsa"]["a"]["without_std"]
    assert set(read.obs["instance_label"]) == {"unknown"}
    two = np.stack([p.attention_mean, -p.attention_mean], 1)
    classes = replace(p, attention_mean=two, attention_variance=two**2, weight_mean=two)
    out, _ = export(
        tmp_path / "classes", None, classes, classes=("benign", "tumour"), anndata="per-bag"
    )
    read = anndata.read_h5ad(out / "a.h5ad")
    np.testing.assert_array_equal(read.obsm["mean (logit)"], two)
    assert list(read.uns["probsa"]["a"]["columns"]["mean (logit)"]) == ["benign", "tumour"]
    assert list(read.uns["probsa"]["a"]["classes"]) == ["benign", "tumour"]
    scan = evidence(scan_bag([0.0, 2.5, 5.0]), name="head")
    out, _ = export(tmp_path / "scan", None, scan, anndata="per-bag")
    read = anndata.read_h5ad(out / "head.h5ad")
    assert list(read.obs["position_mm"]) == [0.0, 2.5, 5.0] and "spatial" not in read.obsm


def test_features_that_were_not_predicted_and_bags_that_differ_are_refused(tmp_path):
    p = slide_bag()
    features_of(tmp_path / "other", replace(p, coords=p.coords + 1))
    out, (said,) = export(
        tmp_path / "moved", None, p, features=tmp_path / "other", anndata="per-bag"
    )
    assert "coordinates" in said and "--no-features" in said
    assert not out.exists() or not list(out.glob("[!.]*"))
    features_of(tmp_path / "few", slide_bag(columns=2))
    _, (said,) = export(tmp_path / "fewer", None, p, features=tmp_path / "few", anndata="per-bag")
    assert "10 instances" in said and "prediction 30" in said
    scan = evidence(scan_bag([0.0, 2.5, 5.0]), name="head")
    with pytest.raises(InputError, match=r"\(ct, slide\)"):
        export(tmp_path / "mixed", None, p, scan, anndata="one-file")
