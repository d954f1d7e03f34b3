"""What every package may use: checks of arguments, whole files, JAX's surroundings, batching, progress."""
