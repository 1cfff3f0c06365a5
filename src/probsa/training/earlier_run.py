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
    config = run.config()
    arguments = known_arguments(config.model)
    keys = section_keys()
    differences: list[str] = []
    for name, value in flatten(flags, arguments - FROM_DATA).items():
        if name == "model.name":
            flag = "model"
            stored = config.model
            requested = value
        elif name in keys:
            flag = keys[name].short
            stored = attrgetter(".".join(keys[name].path))(config)
            requested = keys[name].read(value)
        else:
            flag = name.removeprefix("model.")
            if flag not in arguments:
                flags_of_runs = [*(key.short for key in keys.values()), "model"]
                raise UnknownName("key of a run", name, flags_of_runs)
            stored = config.model_arguments.get(flag)
            requested = tuples(parse_yaml(value) if isinstance(value, str) else value)
        if stored != requested:
            differences.append(f"{flag} is {plain(stored)} there, not {plain(requested)}")
    if differences:
        raise InputError(
            f"--resume continues {run.path} with the settings of its run.yaml: "
            f"{'; '.join(differences)}. Leave these flags out, or train a new run in another --out"
        )
