"""Building TensorRT plans: checks of the graph, the build itself, and verification of the finished plan.

``build.build_plan`` makes one plan. TensorRT is imported only in the child process that it starts (``worker``).
"""
