"""The APIs of the server. To add one, write a module with its ``ApiFace`` and add a line here."""

from __future__ import annotations

from .anthropic.routes import ANTHROPIC
from .api_face import ApiFace
from .openai.routes import OPENAI
from .responses.routes import RESPONSES
from .sagemaker import SAGEMAKER

# The first face also formats the errors of unknown paths.
FACES: dict[str, ApiFace] = {
    "openai": OPENAI,
    "responses": RESPONSES,
    "anthropic": ANTHROPIC,
    "sagemaker": SAGEMAKER,
}
