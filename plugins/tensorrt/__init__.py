"""The project's ops as TensorRT plugins, all of one class, for ``tensorrt`` and ``tensorrt_rtx`` alike."""
