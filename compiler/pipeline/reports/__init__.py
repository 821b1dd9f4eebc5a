"""Reports of builds, and the contents of engines, exports and quantized checkpoints."""
