"""Plans of TensorRT and TensorRT-RTX on one NVIDIA GPU: the round captured once, replayed, and read one round late."""
