"""Calibration: measure the range of every value that a quantized target rounds, one layer at a time."""
