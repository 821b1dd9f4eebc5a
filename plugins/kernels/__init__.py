"""CUDA kernels of ops: source text, compilation, cubin packs, and the launcher."""
