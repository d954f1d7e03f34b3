"""Where training starts: budgets of inducing inputs, scales of the data, and initial values."""
