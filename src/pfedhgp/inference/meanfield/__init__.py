"""The paper's Algorithm 1: q factorises over layers, and clients take gradient steps."""
