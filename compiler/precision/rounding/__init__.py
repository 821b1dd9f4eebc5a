"""Quantization of values to codes and scales."""
