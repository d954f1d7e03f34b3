"""How the model is fitted: the structured solver (default) and the paper's mean-field algorithm."""
