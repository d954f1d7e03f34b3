"""The paper's experiments, with the figures that it prints and with the best that is possible beside them."""
