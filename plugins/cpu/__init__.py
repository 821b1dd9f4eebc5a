"""Our ops as operators of ONNX Runtime on a CPU: from an op's ``kernel.cpp`` to a shared library that is tested."""

INDEX = "cpu_kernels.json"  # the files of a pack
LIBRARY = "cpu_kernels.so"
