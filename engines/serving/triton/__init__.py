"""Engines as models of Triton's Python backend, whose ``model.py`` has nothing but ``engine_model.EngineModel``."""
