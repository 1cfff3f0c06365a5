"""probsa convert."""

from pathlib import Path
from typing import Annotated

from ...datasets import SourceFormat
from ..command import Answer, Flag
from ..flags import Classes, Csv, Dir, FeatureSet, Name, SlideMpp


def run(
    source: Annotated[Path, Flag(holds="folder")],
    *,
    from_: SourceFormat,
    out: Dir,
    slide_mpp: SlideMpp | None = None,
    labels: Csv | None = None,
    classes: Classes | None = None,
    feature_set: FeatureSet | None = None,
    encoder: Name | None = None,
    overwrite: bool = False,
) -> Answer:
    """Convert the bags of other tools to probsa's own layout, one HDF5 file per bag.

    OUT/conversion.csv lists what became of each bag and what could not be converted.

    Args:
        source: Folder with the features that the tool wrote.
        from_: Tool that wrote them.
        out: Folder to write to.
        slide_mpp: Micrometres per level-0 pixel, for slides whose files do not state it: one
            number, or a CSV table with the columns slide,mpp.
        labels: Table of labels to write beside the bags.
        encoder: Encoder that the features were made with, if the files do not state it.
        overwrite: Replace existing bags.
    """
    from ...core import counted
    from ...datasets import bag_names, check_bag_table
    from ...slides import read_resolutions

    bag_names(source, features=feature_set)
    if labels is not None:
        check_bag_table(labels)
    if slide_mpp is not None:
        read_resolutions(slide_mpp)
    from ...datasets import ConversionOptions, convert
    from ..terminal import Counter

    options = ConversionOptions(
        slide_mpp=slide_mpp,
        labels=labels,
        classes=None if classes is None else tuple(classes),
        feature_set=feature_set,
        encoder=encoder,
        overwrite=overwrite,
    )
    with Counter("converting") as count:
        converted = convert(source, out, source_format=from_, options=options, on_bag=count)
    lines = [f"{counted(converted.count('converted'), 'bag')} converted: {converted.out}"]
    lines += [f"empty, left out: {row.bag}" for row in converted.rows if row.status == "empty"]
    for text, bags in converted.losses().items():
        lines.append(f"not converted: {text} ({counted(bags, 'bag')})")
    lines.append(f"what became of each bag: {converted.report}")
    return Answer(converted.to_dict(), "\n".join(lines), converted.failures)
