"""Stage 6: the likelihoods p(Y | X, f) of a bag's target, given its logits: one class for each."""
