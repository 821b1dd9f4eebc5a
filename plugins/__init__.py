"""The ops of the ``peagle`` ONNX domain, one folder each (``ops.OPS`` lists them), and the project's error types."""
