"""Models for Triton's Python backend. A model's ``model.py`` only imports ``engine_model.EngineModel``."""
