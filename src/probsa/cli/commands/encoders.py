"""probsa encoders."""

from ..command import Answer


def run(name: str | None = None, *, markdown: bool = False) -> Answer:
    """List the encoders, their licences and what they need, or describe one of them.

    Args:
        name: Encoder to describe.
        markdown: Print the catalogue at the end of docs/encoders.md.
    """
    from ...features import check_name

    if name is not None:
        check_name(name)
    from ...features import catalogue_lines, catalogue_page, describe, names, readiness

    if markdown:
        return Answer(catalogue_page(), catalogue_page())
    lines = [*catalogue_lines(name)]
    if name is not None:
        lines.append(f"    here: {readiness(name)}")
    rows = [{**describe(n), "here": str(readiness(n))} for n in ([name] if name else names())]
    return Answer(rows[0] if name else rows, "\n".join(lines))
