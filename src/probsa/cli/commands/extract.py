"""probsa extract."""

from pathlib import Path
from typing import Annotated, Literal

from ..command import Answer, Flag, write
from ..flags import Count, Device, Name, ReaderCount, Whole, WorkFlags, answer_with_estimate


def run(
    work: Annotated[Path, Flag(holds="folder")],
    *,
    encoder: Name | None = None,
    weights: Annotated[str, Flag("FILE|URL|hub")] | None = None,
    set: Name | None = None,
    slides: Annotated[Path, Flag("DIR", holds="any")] | None = None,
    windows: Annotated[str, Flag("NAMES")] = "brain,subdural,bone",
    device: Device = "auto",
    precision: Literal["float32", "bf16", "fp16"] = "float32",
    dtype: Literal["float32", "float16"] = "float32",
    batch: Whole = 32,
    readers: ReaderCount | None = None,
    threads: Whole | None = None,
    workers: Count | None = None,
    how: WorkFlags,
    json: bool = False,
) -> Answer:
    """Compute the features of every patch or slice in a work folder, one bag per slide or scan.

    An interrupted extraction continues where it stopped: existing features are kept.

    Args:
        work: Work folder that probsa patch made.
        encoder: Encoder; see probsa encoders. Default: that of the features in the folder; in a new
            one effnet-lite0-middle if the extra effnet is installed, else handcrafted.
        weights: Weights of the encoder: a file, a URL, or hub for the Hugging Face Hub.
        set: Set of patches to use if there are several.
        slides: Where the slides are now, if they were moved.
        windows: CT windows, one for each of the three channels.

    Speed:
        device: Device of the encoder. Default: auto, which is cuda if there is one, else mps, else
            cpu.
        precision: Precision of the encoder.
        dtype: Type of the stored features.
        batch: Patches per batch.
        threads: Number of CPU threads of the encoder. Default: the other half of the cores.

    Work:
        workers: Number of encoders that run at the same time. Default: one per GPU, else 1.
    """
    from ...cohorts import WorkFolder, check_source
    from ...features import check_name, check_weights_path
    from ...slides import Windows

    WorkFolder(work).choose(set)
    if encoder is not None:
        check_name(encoder)
    if weights is not None:
        check_weights_path(weights)
    if slides is not None:
        check_source(slides)
    ct_windows = Windows.parse(windows)
    from ...cohorts import (
        ExtractOptions,
        FeatureRecipe,
        estimate_features,
        extract_cohort,
    )
    from ...features import default_encoder
    from ...jobs import cores
    from ...training import choose_device, gpu_count
    from ..terminal import OutcomeBar

    if encoder is None:
        patch_set = WorkFolder(work).choose(set)
        encoders: list[str] = []
        for name in patch_set.feature_sets():
            folder = patch_set.path / name
            bags = sorted(p.stem for p in folder.glob("*.h5"))
            recipe = FeatureRecipe.of_features(folder, bags)
            if recipe is not None:
                encoders.append(recipe.encoder)
        encoder, reason = default_encoder(frozenset(encoders))
        if not json:
            write(f"Encoder: {encoder} ({reason})")
    device_type = choose_device(device).type
    gpus = device_type == "cuda"
    distributed = how.options(
        workers=workers or (gpu_count() if gpus else 1), isolated=False, gpus=gpus
    )
    cores_per_worker = max(1, cores() // distributed.workers)
    readers = max(1, cores_per_worker // 2) if readers is None else readers
    options = ExtractOptions(
        encoder=encoder,
        weights=weights,
        device=device_type,
        precision=precision,
        dtype=dtype,
        batch=batch,
        readers=readers,
        threads=max(1, cores_per_worker - readers) if threads is None else threads,
        windows=ct_windows,
    )
    if how.dry_run:
        return answer_with_estimate(
            estimate_features(work, options, patch_set=set, workers=distributed.workers)
        )
    with OutcomeBar("extracting") as bar:
        report = extract_cohort(
            work, options, patch_set=set, slides=slides, run=distributed, on_outcome=bar
        )
    document = {"work": str(work), **report.to_dict()}
    return Answer(document, report.render, status=1 if report.failures else 0)
