"""Precision: the number type of each matrix, its codes and scales, and the check that they took effect."""
