"""Find the weights of encoders, read them without executing code, and load them key by key.

The user may name a file, a folder or a URL; otherwise the local caches are searched. A download
happens only for a URL or the word `hub`.
"""

import hashlib
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core import is_fault
from ..errors import WeightsError, absent_package, install_advice
from ._base import Card, Encoder, Origin
from ._names import ADDRESSES, HUB

FILES = ("model.safetensors", "pytorch_model.bin", "pytorch_model_vision.bin")
"""Usual names of the file in a folder with weights."""
NESTED = ("state_dict", "model", "model_state_dict", "teacher", "encoder", "backbone")
"""Keys under which training scripts store weights beside other state."""
SHOWN = 3
"""Number of keys that a message names."""
COUNTER = "num_batches_tracked"
"""A counter of training steps, unused in `eval()` mode and missing in older files."""


def locate(name: str, card: Card, weights: str | os.PathLike[str] | None) -> Path:
    """Return the file with an encoder's weights.

    Raises:
        WeightsError: The file is missing or cannot be downloaded; the message says how to get it.
    """
    origin = card.weights or Origin()
    source = os.fspath(weights or "")
    if source == HUB and not (origin.repository or origin.url):
        raise WeightsError(f"{name} has no weights on a hub. {advice(card)}")
    if source == HUB and origin.repository:
        return _download(name, card, origin)
    url = origin.url if source == HUB else source
    if url.startswith(ADDRESSES):
        return _fetch(name, card, url)
    path = Path(source) if source else cached(origin)
    if path is None:
        raise WeightsError(
            f"{name} needs its weights, but the local caches do not contain them. " + advice(card)
        )
    if path.is_dir():
        files = dict.fromkeys((*origin.files, *FILES))  # in this order, each once
        for file in files:
            if (path / file).is_file():
                return path / file
        raise WeightsError(f"{path}: no weights of {name} in it; looked for {', '.join(files)}")
    if not path.is_file():
        raise WeightsError(f"{path}: no such file of weights for {name}. {advice(card)}")
    return path


def cached(origin: Origin) -> Path | None:
    """Return the weights in an installed package or the caches of PyTorch and the Hub, or None."""
    if origin.package:
        spec = find_spec(origin.package)
        folders = [] if spec is None else spec.submodule_search_locations or []
        for folder in folders:
            for file in origin.files:
                path = Path(folder, file)
                if path.is_file():
                    return path
        return None
    if origin.url and (cache_file := _cache_file(origin.url)).is_file():
        return cache_file
    if not origin.repository:
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
    except ModuleNotFoundError as e:
        if absent_package(e) != "huggingface_hub":
            raise
        return None
    for file in origin.files:
        # a file that is known not to exist there has a marker instead of a path
        cached_path = try_to_load_from_cache(origin.repository, file)
        if isinstance(cached_path, str):
            return Path(cached_path)
    return None


def advice(card: Card) -> str:
    """Return advice on how to get and pass an encoder's weights."""
    origin = card.weights or Origin()
    page = f"https://huggingface.co/{origin.repository}" if origin.repository else ""
    sentences = [
        "Pass the file with weights=FILE (--weights FILE): .safetensors, or .pt, .pth or .bin with "
        "tensors alone."
    ]
    if origin.extra:
        sentences.insert(0, f"Install them with {install_advice(origin.extra)}, or:")
    if origin.url or page:
        addresses = [address for address in (origin.url, page) if address]
        sentences.append(f"It is at {' or '.join(addresses)}.")
        fetch = 'With a network, weights="hub" (--weights hub) downloads it'
        if card.gated:
            fetch += f", once you have accepted its licence at {page} and logged in "
            fetch += "(`hf auth login`, formerly `huggingface-cli login`)"
        sentences.append(fetch + ".")
    return " ".join([*sentences, f"Licence: {card.licence}"])


def _cache_file(url: str) -> Path:
    """Return the file in PyTorch's cache that holds what a URL gives."""
    file = url.rpartition("/")[2].partition("?")[0]
    if not url.startswith("https://download.pytorch.org/"):
        # many URLs end in model.safetensors
        file = f"{hashlib.sha256(url.encode()).hexdigest()[:8]}_{file}"
    return Path(torch.hub.get_dir()) / "checkpoints" / file


def _fetch(name: str, card: Card, url: str) -> Path:
    """Download a URL into PyTorch's cache, unless it is there; return the file."""
    cache_file = _cache_file(url)
    if not cache_file.is_file():
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        # torchvision's file names end in the first digits of the digest
        digest = re.search(r"-([0-9a-f]{8,})\.", cache_file.name)
        try:
            torch.hub.download_url_to_file(
                url, str(cache_file), hash_prefix=digest[1] if digest else None, progress=False
            )
        except (OSError, RuntimeError) as e:
            raise WeightsError(
                f"{url}: the weights of {name} could not be downloaded: {e}. " + advice(card)
            ) from e
    return cache_file


def _download(name: str, card: Card, origin: Origin) -> Path:
    """Download the weights from a repository of the Hugging Face Hub; return the file."""
    from ._network import optional

    hub = optional("huggingface_hub")
    errors = optional("huggingface_hub.errors")
    reason = ""
    for file in origin.files:
        try:
            return Path(hub.hf_hub_download(origin.repository, file))
        except (errors.EntryNotFoundError, OSError) as e:
            reason = str(e)
            if isinstance(e, errors.GatedRepoError):
                reason = f"the licence must be accepted first ({e})"
            elif isinstance(e, errors.LocalEntryNotFoundError):
                reason = f"the hub cannot be reached ({e})"
            elif isinstance(e, errors.EntryNotFoundError):
                reason = f"the repository contains none of {', '.join(origin.files)}"
                continue  # it may have another one
            break
    raise WeightsError(
        f"{name}: no weights from {origin.repository} on the Hugging Face Hub: "
        f"{reason}. {advice(card)}"
    )


def read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file as float32, memory-mapped where the format allows it.

    Raises:
        WeightsError: The file contains no weights, is damaged, or would execute code when read.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        with warnings.catch_warnings():
            # not a checkpoint of PyTorch: the error below says so
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            if path.suffix == ".safetensors":
                state_dict: Any = load_file(path)
            else:
                can_be_mapped = zipfile.is_zipfile(path)
                state_dict = torch.load(
                    path, map_location="cpu", weights_only=True, mmap=can_be_mapped
                )
    except pickle.UnpicklingError as e:
        # PyTorch's own message proposes to trust the file
        raise WeightsError(
            f"{path}: it contains more than tensors or is damaged, and is not unpickled because "
            "that can execute code. If you trust it, save the tensors alone with the code that "
            "wrote it: safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')"
        ) from e
    except (SafetensorError, RuntimeError, EOFError, ValueError, KeyError, AttributeError) as e:
        if is_fault(e):
            raise
        raise WeightsError(f"{path}: not a file of weights, or a damaged one: {e}") from e
    if not isinstance(state_dict, Mapping):
        raise WeightsError(
            f"{path}: expected names with tensors (a state dict), got {type(state_dict).__name__}"
        )
    state_dict = _innermost(state_dict)
    tensors = {k: v for k, v in state_dict.items() if isinstance(k, str) and isinstance(v, Tensor)}
    if not tensors:
        keys = ", ".join(map(str, list(state_dict)[:SHOWN])) or "nothing"
        raise WeightsError(
            f"{path}: it contains no weights, only {keys}; expected names with tensors"
        )
    return {k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}


def _innermost(state_dict: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return the weights of a checkpoint, which training scripts nest in other state."""
    for key in NESTED:
        inner = state_dict.get(key)
        if isinstance(inner, Mapping):
            return _innermost(inner) if inner else state_dict
    return state_dict


def load(encoder: Encoder, path: Path) -> None:
    """Load the weights of a file into an encoder, without copying float32 tensors.

    Prefixes of wrappers (`module.`, `model.`, `backbone.`, …) are removed.

    Raises:
        WeightsError: Keys are missing, unexpected or of other shapes; the message names some.
    """
    state = _unwrap(read(path), encoder, path=path)
    # after the conversion, which may adapt the module to the file
    expected = encoder.core.state_dict()
    counters = {key: torch.tensor(0) for key in expected if key.endswith(COUNTER)}
    state = {**counters, **state}
    missing = []
    reshaped = []
    for key, tensor in expected.items():
        shape = tuple(tensor.shape)
        if key not in state:
            missing.append(f"{key} {shape}")
        elif tuple(state[key].shape) != shape:
            reshaped.append(f"{key} {tuple(state[key].shape)} instead of {shape}")
    extra = [k for k in state if k not in expected and not k.startswith(encoder.heads)]
    faults = []
    if missing:
        faults.append(f"missing: {_list_some(missing)}")
    if extra:
        faults.append(f"left over: {_list_some(extra)}")
    if reshaped:
        faults.append(f"of another shape: {_list_some(reshaped)}")
    if faults:
        raise WeightsError(
            f"{path}: these are not the weights of {encoder.name}. {'; '.join(faults)}"
        )
    encoder.core.load_state_dict({key: state[key] for key in expected}, assign=True)


def _list_some(keys: list[str]) -> str:
    """List the first keys, and how many there are beside them."""
    text = ", ".join(keys[:SHOWN])
    if len(keys) > SHOWN:
        text += f" and {len(keys) - SHOWN} more"
    return text


def _unwrap(state_dict: dict[str, Tensor], encoder: Encoder, *, path: Path) -> dict[str, Tensor]:
    """Return the part of a state dict that belongs to the encoder, without wrapper prefixes."""
    expected = {key for key in encoder.core.state_dict() if not key.endswith(COUNTER)}
    prefixes = {""}
    for key in state_dict:
        for dot in re.finditer(r"\.", key):
            prefixes.add(key[: dot.end()])
    parts: dict[str, dict[str, Tensor]] = {}
    for prefix in sorted(prefixes):
        part = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
        parts[prefix] = encoder.convert(part)
        if prefix == "" and expected & parts[""].keys():
            return parts[""]  # the keys have no prefix
    matches = {prefix: len(expected & part.keys()) for prefix, part in parts.items()}
    most = max(matches.values())
    # if only a few keys agree, they do so by chance: the file is that of another network
    if 2 * most <= len(expected):
        return parts[""]
    best_prefixes = [prefix for prefix, count in matches.items() if count == most]
    if len(best_prefixes) > 1:
        raise WeightsError(
            f"{path}: several networks fit, under {', '.join(best_prefixes)}; save only the one "
            "that you want"
        )
    return parts[best_prefixes[0]]


def digest(module: nn.Module, *, also: str = "") -> str:
    """Return a digest of a module's weights, independent of their file (16 hex digits of SHA-256).

    Args:
        module: The module. Its tensors are hashed with their names, in the order of the names.
        also: Further properties that determine the features.
    """
    sha = hashlib.sha256(also.encode())
    for key, tensor in sorted(module.state_dict().items()):
        if key.endswith(COUNTER):
            continue
        sha.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        sha.update(memoryview(flat.view(torch.uint8).numpy()))
    return sha.hexdigest()[:16]
