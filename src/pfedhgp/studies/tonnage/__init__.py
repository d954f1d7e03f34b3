"""The paper's third application: fault diagnosis from whole machine cycles."""
