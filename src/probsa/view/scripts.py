"""Stage 10: data of the page as classic scripts, which a page opened from a folder may load.

Browsers refuse `fetch` and modules from `file://`, so both the server and the export send calls of
`probsa.put(key, value)`. Arrays are little-endian base64.
"""

import base64
import json
import math
import re
from typing import Any

import numpy as np


def script(key: str, value: Any) -> bytes:
    """Return a script that gives a value to the page under a key.

    Numbers that are not finite become null; everything outside ASCII is escaped.
    """
    text = json.dumps(_plain(value), separators=(",", ":"), allow_nan=False)
    return f"probsa.put({json.dumps(key)},{text});\n".encode("ascii")


def without_folders(text: str) -> str:
    """Return a message without the folders of its absolute paths, since pages are shared."""
    return re.sub(r"(?<![\w.])(?:[A-Za-z]:)?[\\/](?:[^\\/\s:'\"]+[\\/])+", "", text)


def packed(values: np.ndarray, dtype: str) -> dict[str, str]:
    """Return an array for the page: `dtype` is `u1`, `i2`, `i4` or `f4`."""
    data = np.ascontiguousarray(values, dtype=np.dtype(dtype).newbyteorder("<"))
    return {"type": dtype, "base64": base64.b64encode(data.tobytes()).decode("ascii")}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
