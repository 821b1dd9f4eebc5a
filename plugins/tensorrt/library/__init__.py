"""The plugins as a C++ library around the same kernels, for programs without Python: trtexec, Triton, C++."""

LIBRARY = "libpeagle_plugins.so"
INDEX = "plugin_library.json"
