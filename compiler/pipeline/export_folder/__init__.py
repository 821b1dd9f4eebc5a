"""Files of an export for TensorRT beside its graphs."""
