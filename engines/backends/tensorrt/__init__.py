"""TensorRT and TensorRT-RTX plans on one NVIDIA GPU.

Rounds are captured once and replayed; results are read one round late.
"""
