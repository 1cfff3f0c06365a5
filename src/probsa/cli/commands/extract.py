"""probsa extract: compute the features of patches or slices, one bag per slide or scan."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser

from ._cohort import add_work_flags, report_estimate, run_options
from ._shared import command_parser, parse_arguments, write_json

DESCRIPTION = """\
Compute the features of every patch or slice in a work folder, one bag per slide or scan.

An interrupted extraction continues where it stopped: existing features are kept."""


def parser() -> ArgumentParser:
    """Return the parser of `probsa extract`."""
    parser = command_parser("extract", DESCRIPTION)
    add = parser.add_argument
    add("work", type=Path, help="Work folder that probsa patch made.")
    add(
        "--encoder", metavar="NAME",
        help="Encoder; see probsa encoders. Default: that of the features in the folder; in a new "
        "one effnet-lite0-middle if probsa[effnet] is installed, else handcrafted.",
    )  # fmt: skip
    add(
        "--weights", metavar="FILE|URL|hub",
        help="Weights of the encoder: a file, a URL, or hub for the Hugging Face Hub.",
    )  # fmt: skip
    add("--set", metavar="NAME", help="Set of patches to use if there are several.")
    add("--slides", type=Path, metavar="DIR", help="Where the slides are now, if they were moved.")
    add(
        "--windows", default="brain,subdural,bone", metavar="NAMES",
        help="CT windows, one for each of the three channels. Default: brain,subdural,bone.",
    )  # fmt: skip
    add = parser.add_argument_group("speed").add_argument
    add(
        "--device", choices=("auto", "cpu", "cuda", "mps"), default="auto",
        help="Device of the encoder. Default: auto, which is cuda if there is one, else mps, else "
        "cpu.",
    )  # fmt: skip
    add(
        "--precision", choices=("float32", "bf16", "fp16"), default="float32",
        help="Precision of the encoder. Default: float32.",
    )  # fmt: skip
    add(
        "--dtype", choices=("float32", "float16"), default="float32",
        help="Type of the stored features. Default: float32.",
    )  # fmt: skip
    add("--batch", type=int, default=32, metavar="N", help="Patches per batch. Default: 32.")
    add(
        "--readers", type=int, metavar="N",
        help="Number of processes that read and decode patches. Default: half of the cores.",
    )  # fmt: skip
    add(
        "--threads", type=int, metavar="N",
        help="Number of CPU threads of the encoder. Default: the other half of the cores.",
    )  # fmt: skip
    add_work_flags(
        parser,
        workers="Number of encoders that run at the same time. Default: one per GPU, else 1.",
    )
    return parser


def _default_encoder(work: Path, patch_set: str | None) -> tuple[str, str]:
    """Return the encoder that made the features in a work folder, or the default one, and why."""
    from ...cohorts import FeatureRecipe, WorkFolder
    from ...features import default_encoder

    chosen = WorkFolder(work).choose(patch_set)
    folders = [chosen.path / name for name in chosen.feature_sets()]
    bags = [sorted(p.stem for p in folder.glob("*.h5")) for folder in folders]
    recipes = map(FeatureRecipe.of_features, folders, bags)
    return default_encoder({recipe.encoder for recipe in recipes if recipe is not None})


def run(arguments: Sequence[str]) -> int:
    """Run `probsa extract`."""
    args = parse_arguments(parser(), arguments)
    from ...cohorts import ExtractOptions, estimate_features, extract_cohort
    from ...jobs import cores
    from ...slides import Windows
    from ...training import choose_device, gpu_count
    from ..terminal import OUT, counting_outcomes

    encoder, why = (args.encoder, "") if args.encoder else _default_encoder(args.work, args.set)
    if why and not args.json:
        OUT.print(f"Encoder: {encoder} ({why})", markup=False, soft_wrap=True)
    device = choose_device(args.device).type
    gpus = device == "cuda"
    how = run_options(args, workers=gpu_count() if gpus else 1, isolated=False, gpus=gpus)
    cores_per_worker = max(1, cores() // how.workers)
    readers = max(1, cores_per_worker // 2) if args.readers is None else args.readers
    threads = max(1, cores_per_worker - readers) if args.threads is None else args.threads
    options = ExtractOptions(
        encoder=encoder,
        weights=args.weights,
        device=device,
        precision=args.precision,
        dtype=args.dtype,
        batch=args.batch,
        readers=readers,
        threads=threads,
        windows=Windows.parse(args.windows),
    )
    if args.dry_run:
        estimate = estimate_features(args.work, options, patch_set=args.set, workers=how.workers)
        return report_estimate(estimate, as_json=args.json)
    with counting_outcomes("extracting") as count:
        report = extract_cohort(
            args.work,
            options,
            patch_set=args.set,
            slides=args.slides,
            run=how,
            on_outcome=count,
        )
    if args.json:
        write_json({"work": str(args.work), **report.to_dict()})
    else:
        report.render(OUT)
    return 1 if report.failures else 0
