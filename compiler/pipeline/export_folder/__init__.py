"""What an export for TensorRT holds beside its graphs."""
