"""The parts of ``examples/ray_serve.py``: replicas of one engine behind Ray Serve, and how they are changed."""
