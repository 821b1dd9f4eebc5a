"""Draft heads for a chat model: training text written by the model, training data, and acceptance measurements."""
