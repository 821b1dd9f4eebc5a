"""The APIs that the server has; a new one is a module with its ``ApiFace``, and a line here."""

from __future__ import annotations

from .api_face import ApiFace
from .openai.routes import OPENAI
from .sagemaker import SAGEMAKER

# The first one's errors are those of paths that no face has.
FACES: dict[str, ApiFace] = {
    "openai": OPENAI,
    "sagemaker": SAGEMAKER,
}
