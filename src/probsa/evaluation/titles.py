"""The titles of metrics in the text of a report."""

TITLES = {
    "auroc": "AUROC",
    "average_precision": "average precision",
    "f1": "F1",
    "f1_at_0.5": "F1 at 0.5",
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "ece": "ECE, 15 bins of equal width (interval biased upwards)",
    "nll": "negative log-likelihood",
    "error_auroc_spread": "wrong bags found by s, the s.d. of p (AUROC)",
    "error_auroc_margin": "… by the margin of the call (null)",
    "auroc_positive_bags": "AUROC, positive bags pooled",
    "average_precision_positive_bags": "average precision, positive bags pooled",
    "error_rate": "wrong calls, positive bags pooled",
    "error_auroc_variance": "wrong calls found by σ² (AUROC)",
    "error_auroc_doubt": "… by P(wrong) = Φ(−|e|/σ)",
    "dice": "Dice at the validation threshold, mean over positive bags",
    "dice_pooled": "Dice at the validation threshold, positive bags pooled",
    "authors_auroc": "authors' protocol: AUROC",
    "authors_average_precision": "authors' protocol: average precision",
    "authors_f1": "authors' protocol: F1",
    "authors_accuracy": "authors' protocol: accuracy",
}
INSTANCE_TITLES = {
    **TITLES,
    "auroc": "AUROC, all bags pooled",
    "average_precision": "average precision, all bags pooled",
    "error_auroc_margin": "… by −|e| (null)",
}
POOLED = (
    "Pooled: the instances of these bags are ranked together, so that telling bags apart counts as "
    "well as telling the instances of a bag apart."
)
"""The sentence below the table of instances."""

TARGET_TITLES = {
    **TITLES,
    "macro_auroc": "AUROC, mean over classes",
    "weighted_auroc": "AUROC, weighted by class shares",
    "micro_auroc": "AUROC of all pairs of bag and class",
    "one_vs_one_auroc": "AUROC, mean over pairs of classes",
    "macro_average_precision": "average precision, mean over classes",
    "micro_average_precision": "average precision of all pairs",
    "macro_f1": "F1, mean over classes",
    "kappa": "Cohen's kappa",
    "linear_kappa": "kappa with linear weights",
    "quadratic_kappa": "kappa with quadratic weights",
    "matthews": "Matthews correlation",
    "classwise_ece": "ECE, mean over classes",
    "mae": "mean absolute error",
    "within_one": "calls within one grade",
    "rps": "ranked probability score",
    "rmse": "root mean squared error",
    "r_squared": "R²",
    "spearman": "Spearman correlation",
    "crps": "CRPS",
    "coverage": "coverage",
    "width": "mean width",
    "uno_c": "Uno's c",
    "harrell_c": "Harrell's c",
    "mean_auroc": "AUROC, mean over times",
    "integrated_brier": "integrated Brier score",
}
"""The titles of metrics of targets that are not two classes."""
