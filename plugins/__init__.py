"""The ops of the ``peagle`` ONNX domain, one folder each (``ops.OPS`` lists them), and the errors everything raises."""

import os

# The wheels of ONNX Runtime report to their maker when they are imported and when a session is made, and keep an id of
# the device on disk. Only this, and only before that, keeps them from it; who sets it is obeyed.
# https://github.com/microsoft/onnxruntime/pull/27379
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
