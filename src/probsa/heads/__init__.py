"""Stage 8: many runs in one pass over the data, each equal to what it would be alone."""

from .joining import pass_key as pass_key
from .joining import why_alone as why_alone
from .together import HeadsFailed as HeadsFailed
from .together import train_together as train_together
