"""probsa extract: the patches or slices of a work folder to features, one bag a slide."""

from pathlib import Path

from ._cohort import add_run_flags, shard_of, workers_of
from ._shared import Parser, write_json


def _parser() -> Parser:
    p = Parser(
        prog="probsa extract",
        description="Features of every patch or slice of a work folder. Goes on where it stopped: "
        "what is there already is kept.",
    )
    p.add_argument("work", type=Path, help="the work folder that probsa patch made")
    p.add_argument("--encoder", default="handcrafted", help="see probsa encoders (handcrafted)")
    p.add_argument("--weights", help="file with the encoder's weights, or a URL, or hub")
    p.add_argument("--set", help="which set of patches, where there are several")
    p.add_argument("--slides", type=Path, help="where the slides are now, if they were moved")
    p.add_argument("--windows", default="brain,subdural,bone", help="of CT: the three channels")
    s = p.add_argument_group("speed")
    s.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto")
    s.add_argument("--precision", choices=("float32", "bf16", "fp16"), default="float32")
    s.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="on disk")
    s.add_argument("--batch", type=int, default=32, help="patches at a time (32)")
    s.add_argument("--readers", type=int, help="processes that read and decode (half the cores)")
    s.add_argument("--threads", type=int, help="of the encoder (the other half)")
    add_run_flags(p, workers="encoders at a time (a GPU each, where there are several; else 1)")
    return p


def run(arguments: list[str]) -> int:
    """probsa extract."""
    a = _parser().parse_args(arguments)
    from ...cohorts import ExtractOptions, RunOptions, estimate_features, extract_cohort
    from ...jobs import cores
    from ...slides import Windows
    from ...training import choose_device, gpus
    from ..terminal import OUT, counting_outcomes

    device = choose_device(a.device).type
    several = gpus() if device == "cuda" else 1
    workers = workers_of(a.workers, default=several)
    share = max(1, cores() // workers)
    readers = share // 2 if a.readers is None else a.readers
    options = ExtractOptions(
        encoder=a.encoder,
        weights=a.weights,
        device=device,
        precision=a.precision,
        dtype=a.dtype,
        batch=a.batch,
        readers=readers,
        threads=max(1, share - readers) if a.threads is None else a.threads,
        windows=Windows.parse(a.windows),
    )
    if a.dry_run:
        found = estimate_features(a.work, options, patch_set=a.set, workers=workers)
        if a.json:
            write_json(found.to_dict())
        else:
            found.render(OUT)
        return 1 if found.tried and len(found.failed) == found.tried else 0
    with counting_outcomes("extracting") as count:
        report = extract_cohort(
            a.work,
            options,
            patch_set=a.set,
            slides=a.slides,
            run=RunOptions(
                engine=a.engine,
                workers=workers,
                gpus=device == "cuda",
                shard=shard_of(a.shard),
                overwrite=a.overwrite,
            ),
            on_outcome=count,
        )
    if a.json:
        write_json({"work": str(a.work), **report.to_dict()})
    else:
        report.render(OUT)
    return 1 if report.failures else 0
