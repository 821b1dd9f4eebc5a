"""Building TensorRT plans: what can be built for which GPU, what a graph must be like, and the build itself.

``choose`` picks a backend for this machine, ``plan.build_plan`` makes one plan. TensorRT is only ever imported in the
child process that ``plan`` starts (``worker``).
"""
