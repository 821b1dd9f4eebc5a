"""Calibration: how large the numbers get that a quantised target has to hold, measured one layer at a time."""
