"""The names of formats and data sets that commands offer; imports nothing heavy."""

from typing import Literal

SourceFormat = Literal["clam", "trident", "stamp", "slideflow", "torchmil", "probsa"]
"""The tools whose files `convert` reads."""
StudyName = Literal["rsna", "panda", "camelyon16", "table"]
"""The data sets that `open_study` prepares; `table` is a cohort of the user's own."""
MOST_CACHE_GB = 10**6
MOST_VALIDATION = 0.5
"""Largest share of the training bags that may be taken for validation."""
