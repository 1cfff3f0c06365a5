"""What is asked of a run that exists, checked before PyTorch is imported."""

from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..datasets import bag_names
from ..errors import InputError, UnknownName
from ..models import known_arguments
from .config import flatten, parse_yaml, plain, section_keys, tuples
from .given import FROM_DATA, chosen_set
from .run_folder import RunFolder


def check_features_of(run: Path, features: Path) -> None:
    """Refuse a folder without bags that a run, or a saved model, is to predict.

    Raises:
        BagError: see `bag_names`.
    """
    folder = RunFolder(run)
    data = folder.config().data if folder.config_file.is_file() else None
    bag_names(features, features=None if data is None else chosen_set(data, features))


def check_settings(run: RunFolder, flags: Mapping[str, Any]) -> None:
    """Refuse flags that a resumed run would ignore: all its settings are those of its run.yaml.

    Flags with the values that the run has are accepted.

    Raises:
        UnknownName: a run has no such key.
        InputError: there is no run to resume, or flags differ from its settings; names them all.
    """
    stored = run.config()
    given = flatten(flags, known_arguments(stored.model) - FROM_DATA)
    known = section_keys()
    different: list[str] = []
    for key, value in given.items():
        if key == "model.name":
            own, wanted = stored.model, value
        elif key in known:
            own, wanted = attrgetter(".".join(known[key].path))(stored), known[key].read(value)
        else:
            argument = key.removeprefix("model.")
            if argument not in known_arguments(stored.model):
                raise UnknownName(
                    "key of a run", key, [*(k.short for k in known.values()), "model"]
                )
            own = stored.model_arguments.get(argument)
            wanted = tuples(parse_yaml(value) if isinstance(value, str) else value)
        if own != wanted:
            short = "model" if key == "model.name" else key.rpartition(".")[2]
            different.append(f"{short} is {plain(own)} there, not {plain(wanted)}")
    if different:
        raise InputError(
            f"--resume continues {run.path} with the settings of its run.yaml: "
            f"{'; '.join(different)}. Leave these flags out, or train a new run in another --out"
        )
