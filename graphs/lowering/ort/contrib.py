"""The domain of ONNX Runtime's own operators."""

CONTRIB = "com.microsoft"
