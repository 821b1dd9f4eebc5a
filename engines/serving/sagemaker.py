"""Amazon SageMaker's container contract: ``GET /ping`` and ``POST /invocations`` on port 8080.

https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html. As in AWS's vLLM containers, the
header ``X-Amzn-SageMaker-Custom-Attributes: route=/v1/chat/completions`` selects the API path. Without it, the body
decides.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .api_face import ApiFace
from .health import ping
from .openai.formats import ERROR_FIELDS
from .openai.routes import chat, complete
from .openai_error import error_body
from .problems import HttpRefusal
from .reading import malformed, read_body
from .state import ServerState

_TARGETS = {"/v1/completions": complete, "/v1/chat/completions": chat}
_HEADER = "x-amzn-sagemaker-custom-attributes"


async def invocations(request: Request) -> Response:
    """``POST /invocations``: a chat completion if the body has ``messages``, else a completion."""
    state = ServerState.of(request)
    raw = await read_body(request, state.limits, any_type=True)  # SageMaker forwards its caller's content type
    return await _TARGETS[_route(request) or _path_of(raw)](state, request, raw)


def _route(request: Request) -> str | None:
    for attribute in request.headers.get(_HEADER, "").split(","):
        name, _, value = attribute.strip().partition("=")
        if name == "route":
            if value not in _TARGETS:
                raise HttpRefusal(
                    400, f"route={value[:100]} is not one of {', '.join(_TARGETS)}", param="route", code="unknown_route"
                )
            return value
    return None


def _path_of(raw: bytes) -> str:
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise malformed(raw, error) from None
    return "/v1/chat/completions" if isinstance(body, dict) and "messages" in body else "/v1/completions"


SAGEMAKER = ApiFace(
    (Route("/ping", ping), Route("/invocations", invocations, methods=["POST"])), error_body, ERROR_FIELDS
)
