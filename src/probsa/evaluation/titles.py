"""The titles of metrics in the text of a report."""

TITLES = {
    "auroc": "AUROC",
    "average_precision": "average precision",
    "f1": "F1",
    "f1_at_0.5": "F1 at 0.5",
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "ece": "ECE (15 bins; its interval is biased upwards)",
    "nll": "negative log-likelihood",
    "error_auroc_spread": "wrong bags found by the spread (AUROC)",
    "error_auroc_margin": "… by -|p - threshold| (null)",
    "auroc_positive_bags": "AUROC within positive bags",
    "average_precision_positive_bags": "average precision within positive bags",
    "error_rate": "wrong calls within positive bags",
    "error_auroc_variance": "wrong calls found by σ² (AUROC)",
    "error_auroc_doubt": "… by P(wrong) = Φ(-|e|/σ)",
    "error_auroc_degree": "… by 1/degree (null)",
    "dice": "Dice, mean over positive bags",
    "dice_pooled": "Dice of all their instances",
    "authors_auroc": "authors' protocol: AUROC",
    "authors_average_precision": "authors' protocol: average precision",
    "authors_f1": "authors' protocol: F1",
    "authors_accuracy": "authors' protocol: accuracy",
}
INSTANCE_TITLES = {**TITLES, "error_auroc_margin": "… by -|s| (null)"}
