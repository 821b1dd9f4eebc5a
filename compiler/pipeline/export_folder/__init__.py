"""Files of an export for TensorRT in addition to its graphs."""
