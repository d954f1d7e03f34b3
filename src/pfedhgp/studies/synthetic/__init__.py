"""The paper's numerical study, with the Bayes oracle beside every method."""
