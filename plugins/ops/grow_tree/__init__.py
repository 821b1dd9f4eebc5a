from .spec import SPEC

__all__ = ["SPEC"]
