"""Faults in inputs: unknown names, and missing labels, features and files of releases."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
from fault_bench import SMALL, Fault, Workshop, write_rows

RECIPES = Path(__file__).parents[2] / "recipes"


def names(shop: Workshop) -> Iterator[Fault]:
    """Yield faults with models, keys and values that do not exist."""
    folder = shop.cohort("ct_ich", shop.rows("ct_ich"))
    for what, keys, words in (
        ("an unknown model", {"models": ["abmil-probsa-dia"]}, ("abmil-probsa-dia'", "-diag")),
        ("an unknown argument", {"models": [{**SMALL, "embd": 3}]}, ("embd", "embed")),
        ("an unknown key", {"epoch": 3}, ("epoch", "epochs")),
        ("an unknown λ", {"kl_weight": ["cyclic"]}, ("cyclic", "cyclical")),
        ("no models", {"models": []}, ("models",)),
        ("an exception for an unknown model", {"exceptions": [{"models": "dsmill", "epochs": 2}]},
         ("dsmill",)),
    ):  # fmt: skip
        command = shop.benchmark(folder, shop.grid(**keys))
        yield Fault(what=f"{what}: grid", command=command, words=words)
    yield Fault(
        what="an unknown model: train",
        command=shop.train(folder, "--model", "abmill"),
        words=("abmill", "abmil"),
    )


def labels(shop: Workshop) -> Iterator[Fault]:
    """Yield faults with missing labels."""
    rows = shop.rows("ct_ich")
    bare = shop.cohort("ct_ich")
    ablation = ["benchmark", RECIPES / "ablation.yaml", "--out", shop.folder() / "out", "--data"]
    yield Fault(what="no labels.csv: recipe", command=[*ablation, bare], words=("labels.csv",))
    yield Fault(what="no labels.csv: train", command=shop.train(bare), words=("labels.csv",))
    yield Fault(
        what="no labels.csv: dataset",
        command=["dataset", "table", bare, "--out", shop.folder() / "out"],
        words=("labels.csv",),
    )
    named = {"features": str(bare / "features"), "labels": str(bare / "clinical.csv")}
    for what, data, words in (
        ("a missing label table", named, ("clinical.csv",)),
        (
            "a missing folder of instance labels",
            {**named, "labels": str(shop.data / "ct_ich" / "labels.csv"),
             "instance_labels": str(bare / "slices")},
            ("slices",),
        ),
        ("no labels at all", {"features": named["features"]}, ("labels",)),
    ):  # fmt: skip
        grid = shop.grid(data=data)
        yield Fault(
            what=f"a grid with {what}",
            command=["benchmark", grid, "--out", grid.parent / "out"],
            words=words,
        )
    for what, changed, words in (
        ("a bag without a row", rows[1:], (rows[0]["bag"],)),
        ("a row without a bag", [*rows, {**rows[0], "bag": "777"}], ("777",)),
        ("an empty label", [{**rows[0], "label": ""}, *rows[1:]], (rows[0]["bag"],)),
        ("no label column", [{"bag": r["bag"], "fold": r["fold"]} for r in rows], ("label",)),
        (
            "ids without their leading zeros",
            [{**r, "bag": str(int(r["bag"]))} for r in rows],
            ("zeros",),
        ),
    ):
        folder = shop.cohort("ct_ich", changed)
        yield Fault(what=f"{what}: grid", command=shop.benchmark(folder), words=words)
        yield Fault(
            what=f"{what}: train", command=shop.train(folder, "--test_fold", "0"), words=words
        )


def features(shop: Workshop) -> Iterator[Fault]:
    """Yield faults with folders that contain no features."""
    rows = shop.rows("ct_ich")
    for what, make in (
        ("folder missing", lambda f: None),
        ("folder is a file", lambda f: f.write_text("features")),
        ("folder empty", lambda f: f.mkdir()),
        ("folder with pictures", lambda f: (f.mkdir(), (f / "049.png").write_bytes(b"\x89PNG"))),
        ("folder with damaged files", lambda f: (f.mkdir(), [
            (f / f"{r['bag']}.h5").write_bytes(b"\x89HDF") for r in rows])),
    ):  # fmt: skip
        folder = shop.folder()
        write_rows(folder / "labels.csv", rows)
        make(folder / "features")
        grid = shop.grid(
            data={"features": str(folder / "features"), "labels": str(folder / "labels.csv")}
        )
        command = ["benchmark", grid, "--out", grid.parent / "out"]
        yield Fault(what=f"features {what}: grid", command=command, words=("features",))
        yield Fault(
            what=f"features {what}: train",
            command=shop.train(folder, "--test_fold", "0"),
            words=("features",),
        )


def processed(shop: Workshop, study: str) -> Path:
    """Create a folder in the authors' processed layout of a study from a few ready bags."""
    ct = study == "rsna"
    source = "ct_ich" if ct else "colon_tiles"
    rows = shop.rows(source)
    chosen = [r for y in "01" for r in [r for r in rows if r["label"] == y][:6]]
    root = shop.folder()
    base = root if ct else root / "patches_512"
    kinds = ("labels", "slice_labels" if ct else "patch_labels", "features/features_UNI", "coords")
    for kind in kinds[: 3 if ct else 4]:
        (base / kind).mkdir(parents=True)
    lines = ["bag_name,split"]
    for k, r in enumerate(chosen):
        test = k % 6 > 3
        name = f"ID_{k:010x}" if ct else f"{k:032x}"
        if study == "camelyon16":
            name = f"{'test' if test else ('normal', 'tumor')[int(r['label'])]}_{k + 1:03}"
        with h5py.File(shop.data / source / "features" / f"{r['bag']}.h5") as f:
            np.save(base / kinds[2] / f"{name}.npy", f["features"][...])
            np.save(base / kinds[1] / f"{name}.npy", f["instance_labels"][...].astype(np.int64))
            if not ct:
                np.save(base / "coords" / f"{name}.npy", f["coords"][...])
        np.save(base / "labels" / f"{name}.npy", np.array([int(r["label"])]))
        lines.append(f"{name},{'test' if test else 'train'}")
    (root / "splits.csv").write_text("\n".join(lines) + "\n")
    return root


def releases(shop: Workshop) -> Iterator[Fault]:
    """Yield faults with folders of releases in which files are missing."""
    missing = {
        "rsna": ("splits.csv", "features", "labels", "labels/ID_0000000001.npy"),
        "panda": ("splits.csv", "patches_512/features", "patches_512/labels"),
        "camelyon16": ("patches_512/features", "patches_512/labels", "patches_512/coords"),
    }
    for study, parts in missing.items():
        whole = processed(shop, study)
        command = ["dataset", study, whole, "--out", shop.folder() / "out"]
        yield Fault(what=f"{study}, processed, complete (control)", command=command, status=0)
        for part in parts:
            root = processed(shop, study)
            path = root / part
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            command = ["dataset", study, root, "--out", shop.folder() / "out"]
            word = Path(part).name
            yield Fault(what=f"{study}, processed, without {part}", command=command, words=(word,))
    root = processed(shop, "panda")
    (root / "splits.csv").unlink()
    out = shop.folder() / "out"
    yield Fault(
        what="panda, processed, without splits.csv: recipe",
        command=["benchmark", RECIPES / "panda.yaml", "--feature_set", "features_UNI",
                 "--data", root, "--out", out],
        words=("splits.csv",),
    )  # fmt: skip
    yield from raw_releases(shop)


def raw_releases(shop: Workshop) -> Iterator[Fault]:
    """Yield faults with raw downloads in which a table of the release is missing."""
    work = shop.data / "ct_ich" / "features"
    rsna = shop.folder()
    (rsna / "stage_2_train").mkdir()
    for path in shop.scans.glob("*.dcm"):
        (rsna / "stage_2_train" / path.name).symlink_to(path)
    panda, camelyon = shop.folder(), shop.folder()
    for name in ("train_images", "train_label_masks"):
        (panda / name).mkdir()
    slides = shop.folder()
    for name in ("normal_001", "tumor_001", "test_001"):
        (camelyon / f"{name}.tif").touch()
        (slides / f"{name}.h5").symlink_to(shop.data / "colon_tiles" / "features" / "img001.h5")
    empty = shop.folder()
    for what, study, root, features_folder, words in (
        ("rsna, raw, without stage_2_train.csv", "rsna", rsna, work, ("stage_2_train.csv",)),
        ("panda, raw, without train.csv", "panda", panda, work, ("train.csv",)),
        ("camelyon16, raw, without reference.csv", "camelyon16", camelyon, slides,
         ("reference.csv", "test_001")),
        ("rsna, an empty folder", "rsna", empty, None, ("stage_2_train",)),
        ("panda, an empty folder", "panda", empty, None, ("train_images",)),
        ("camelyon16, an empty folder", "camelyon16", empty, None, ("camelyon16",)),
    ):  # fmt: skip
        more = [] if features_folder is None else ["--features", features_folder]
        command = ["dataset", study, root, *more, "--out", shop.folder() / "out"]
        yield Fault(what=what, command=command, words=words)
    yield Fault(
        what="an empty folder as --data of a recipe",
        command=["benchmark", RECIPES / "camelyon16.yaml",
                 "--data", empty, "--out", shop.folder() / "out"],
        words=("splits.csv", "labels.csv"),
    )  # fmt: skip
