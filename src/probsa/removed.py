"""What earlier versions had and this one has not, and what to use instead.

Whoever names one of these, as a command, a flag, a key or a value, is told what to use.
"""

from collections.abc import Mapping

REMOVED: Mapping[str, str] = {
    "closed_form": "samples of the posterior, which every model draws",
    "consistency": "guidance: normal; this term was equal to its control on every set",
    "consistency_weight": "guidance: normal",
    "convert_checkpoint": (
        "`probsa train --model NAME --preset original`, or a folder that save_pretrained wrote "
        "(probsa.from_pretrained)"
    ),
    "left_out_bags": "python benchmarks/localmil/run.py --left-out-bags N",
    "localmil": "python benchmarks/localmil/run.py DIR --out OUT",
    "pooling": "nothing: samples of the posterior are drawn",
    "to": "nothing: probsa convert writes one HDF5 file per bag, which other tools read",
    "combine": "probsa predict RUN RUN, which averages runs with the same features",
    "cox": "discrete hazards, by which all models learn times",
    "survival": "discrete hazards, by which all models learn times: leave it out",
    "lesions": "MONAI's LesionFROC, on what probsa map exports",
    "recall": "--coverage or --max-error of probsa evaluate and probsa sets",
    "ray": "--engine slurm, or --shard i/n on each machine",
    "verify": "run probsa patch and extract again, which make or name what is missing",
}
"""What to use instead, by the name without dashes: `set_score` for --set-score and for the key
`training.set_score`."""


def instead_of(name: str) -> str:
    """Return ` It was removed. Instead: …` for a name that was removed, or an empty string.

    Args:
        name: a command, a flag, a value, or a key with or without its section.
    """
    plain = name.strip("-").rpartition(".")[2].lower().replace("-", "_")
    if plain not in REMOVED:
        return ""
    return f" It was removed. Instead: {REMOVED[plain]}"
