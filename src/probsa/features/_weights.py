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

HUB = "hub"
FILES = ("model.safetensors", "pytorch_model.bin", "pytorch_model_vision.bin")
# keys under which training scripts store weights beside other state
NESTED = ("state_dict", "model", "model_state_dict", "teacher", "encoder", "backbone")
COUNTER = "num_batches_tracked"
"""A counter of training steps, unused in `eval()` mode and missing in older files."""


def locate(name: str, card: Card, weights: str | os.PathLike[str] | None) -> Path:
    """Return the file with an encoder's weights.

    Raises:
        WeightsError: the file is missing or cannot be downloaded; the message says how to get it.
    """
    origin, text = card.weights or Origin(), os.fspath(weights or "")
    if text == HUB and not (origin.repository or origin.url):
        raise WeightsError(f"{name} has no weights on a hub. {advice(card)}")
    if text == HUB and origin.repository:
        return _download(name, card, origin)
    url = origin.url if text == HUB else text
    if url.startswith(("https://", "http://")):
        return _fetch(name, card, url)
    path = Path(text) if text else cached(origin)
    if path is None:
        raise WeightsError(
            f"{name} needs its weights, but the local caches do not contain them. " + advice(card)
        )
    if path.is_dir():
        wanted = dict.fromkeys((*origin.files, *FILES))
        found = next((path / file for file in wanted if (path / file).is_file()), None)
        if found is None:
            raise WeightsError(
                f"{path}: no weights of {name} in it; looked for {', '.join(wanted)}"
            )
        return found
    if not path.is_file():
        raise WeightsError(f"{path}: no such file of weights for {name}. {advice(card)}")
    return path


def cached(origin: Origin) -> Path | None:
    """Return the weights in an installed package or the caches of PyTorch and the Hub, or None."""
    if origin.package:
        spec = find_spec(origin.package)
        folders = [] if spec is None else spec.submodule_search_locations or []
        files = (Path(folder, file) for folder in folders for file in origin.files)
        return next((file for file in files if file.is_file()), None)
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
    found = (try_to_load_from_cache(origin.repository, file) for file in origin.files)
    return next((Path(f) for f in found if isinstance(f, str)), None)


def advice(card: Card) -> str:
    """Return advice on how to get and pass an encoder's weights."""
    origin = card.weights or Origin()
    page = f"https://huggingface.co/{origin.repository}" if origin.repository else ""
    sentences = [
        "Pass the file with weights=FILE (--weights FILE): .safetensors, or .pt, .pth or .bin with "
        "tensors alone."
    ]
    if origin.package:
        sentences.insert(0, f"Install them with {install_advice('effnet')}, or:")
    if origin.url or page:
        sentences.append(f"It is at {' or '.join(filter(None, (origin.url, page)))}.")
        fetch = 'With a network, weights="hub" (--weights hub) downloads it'
        if card.gated:
            fetch += f", once you have accepted its licence at {page} and logged in "
            fetch += "(`hf auth login`, formerly `huggingface-cli login`)"
        sentences.append(fetch + ".")
    return " ".join([*sentences, f"Licence: {card.licence}"])


def _cache_file(url: str) -> Path:
    file = url.rpartition("/")[2].partition("?")[0]
    if not url.startswith("https://download.pytorch.org/"):
        # many URLs end in model.safetensors
        file = f"{hashlib.sha256(url.encode()).hexdigest()[:8]}_{file}"
    return Path(torch.hub.get_dir()) / "checkpoints" / file


def _fetch(name: str, card: Card, url: str) -> Path:
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
    from ._network import optional

    hub, errors = optional("huggingface_hub"), optional("huggingface_hub.errors")
    why = ""
    for file in origin.files:
        try:
            return Path(hub.hf_hub_download(origin.repository, file))
        except (errors.EntryNotFoundError, OSError) as e:
            why = str(e)
            if isinstance(e, errors.GatedRepoError):
                why = f"the licence must be accepted first ({e})"
            elif isinstance(e, errors.LocalEntryNotFoundError):
                why = f"the hub cannot be reached ({e})"
            elif isinstance(e, errors.EntryNotFoundError):
                why = f"the repository contains none of {', '.join(origin.files)}"
                continue
            break
    raise WeightsError(
        f"{name}: no weights from {origin.repository} on the Hugging Face Hub: "
        f"{why}. {advice(card)}"
    )


def read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file as float32, memory-mapped where the format allows it.

    Raises:
        WeightsError: the file contains no weights, is damaged, or would execute code when read.
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
                mapped = zipfile.is_zipfile(path)
                state_dict = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
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
    while inner := next((v for k in NESTED if isinstance(v := state_dict.get(k), Mapping)), None):
        state_dict = inner
    tensors = {k: v for k, v in state_dict.items() if isinstance(k, str) and isinstance(v, Tensor)}
    if not tensors:
        keys = ", ".join(map(str, list(state_dict)[:3])) or "nothing"
        raise WeightsError(
            f"{path}: it contains no weights, only {keys}; expected names with tensors"
        )
    return {k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}


def load(encoder: Encoder, path: Path) -> None:
    """Load the weights of a file into an encoder, without copying float32 tensors.

    Prefixes of wrappers (`module.`, `model.`, `backbone.`, …) are removed.

    Raises:
        WeightsError: keys are missing, unexpected or of other shapes; the message names some.
    """
    state = _unwrapped(read(path), encoder, path=path)
    # after the conversion, which may adapt the module to the file
    expected = encoder.core.state_dict()
    counters = {k: torch.tensor(0) for k in expected if k.endswith(COUNTER)}
    state = {**counters, **state}
    faults = {
        "missing": [f"{k} {tuple(v.shape)}" for k, v in expected.items() if k not in state],
        "left over": [k for k in state if k not in expected and not k.startswith(encoder.heads)],
        "of another shape": [
            f"{k} {tuple(state[k].shape)} instead of {tuple(v.shape)}"
            for k, v in expected.items()
            if k in state and state[k].shape != v.shape
        ],
    }
    said = [
        f"{what}: {', '.join(keys[:3])}" + (f" and {len(keys) - 3} more" if keys[3:] else "")
        for what, keys in faults.items()
        if keys
    ]
    if said:
        raise WeightsError(
            f"{path}: these are not the weights of {encoder.name}. {'; '.join(said)}"
        )
    encoder.core.load_state_dict({k: state[k] for k in expected}, assign=True)


def _unwrapped(state_dict: dict[str, Tensor], encoder: Encoder, *, path: Path) -> dict[str, Tensor]:
    """Return the part of a state dict that belongs to the encoder, without wrapper prefixes."""
    named = {k for k in encoder.core.state_dict() if not k.endswith(COUNTER)}
    prefixes = {"": None} | dict.fromkeys(
        sorted(k[: m.end()] for k in state_dict for m in re.finditer(r"\.", k))
    )
    parts: dict[str, dict[str, Tensor]] = {}
    for prefix in prefixes:
        part = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
        parts[prefix] = encoder.convert(part)
        if not prefix and named & parts[""].keys():
            return parts[""]
    fits = {prefix: len(named & part.keys()) for prefix, part in parts.items()}
    best = max(fits.values())
    if 2 * best <= len(named):  # a few names agree by chance: these belong to another network
        return parts[""]
    first, *others = (prefix for prefix, fit in fits.items() if fit == best)
    if others:
        raise WeightsError(
            f"{path}: several networks fit, under {', '.join((first, *others))}; save only the one "
            "that you want"
        )
    return parts[first]


def digest(module: nn.Module, *, also: str = "") -> str:
    """Return a digest of a module's weights, independent of their file (16 hex digits of SHA-256).

    Args:
        module: the module; its tensors are hashed with their names, in the order of names.
        also: further properties that determine the features.
    """
    sha = hashlib.sha256(also.encode())
    for key, tensor in sorted(module.state_dict().items()):
        if key.endswith(COUNTER):
            continue
        sha.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        sha.update(memoryview(flat.view(torch.uint8).numpy()))
    return sha.hexdigest()[:16]
