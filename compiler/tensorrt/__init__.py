"""Building TensorRT plans: what a graph must be like, the build itself, and what a finished plan says of itself.

``build.build_plan`` makes one plan. TensorRT is only ever imported in the child process that it starts (``worker``).
"""
