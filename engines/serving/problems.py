"""Refusals as HTTP has them: a status, and the error object that OpenAI's clients read."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from starlette.responses import Response

from ...plugins.errors import EnvironmentProblem, PeagleError, UsageError
from ..errors import EngineClosed, PromptTooLong, QueueFull

# Fields whose values the engine checks itself, and names as the API does.
ENGINE_FIELDS = (
    "prompt", "messages", "documents", "chat_template_kwargs", "num_speculative_tokens", "draft", "logit_bias",
    "max_tokens", "max_completion_tokens", "min_tokens", "stop_token_ids", "allowed_token_ids", "bad_words",
    "tools", "tool_choice",
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
)  # fmt: skip
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"  # the code that clients shorten a dialogue by
_MOST_OF_LOG = 300  # characters
# Text in quotes, which an apostrophe does not open. It may have been cut, and have lost its end.
_QUOTED = re.compile(r"""(?<!\w)(['"])(?:\\.|(?!\1).)*(?:\1|$)""", re.DOTALL)
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
}


class HttpRefusal(Exception):
    """A request that is answered with an error.

    ``param`` names the field that is at fault, by its path in the body; ``code`` is for programs; ``retry_after`` says
    in how many seconds the same request may succeed.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    def body(self) -> dict[str, Any]:
        """The body of the response: ``{"error": {message, type, param, code}}``."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def for_log(self) -> dict[str, Any]:
        """What the log says of it: the same in short, without what the message quotes from the request."""
        message = _QUOTED.sub("'...'", self.message)
        said = {**self.body()["error"], "message": message}
        return {name: value and str(value)[:_MOST_OF_LOG] for name, value in said.items()}

    def response(self) -> Response:
        """The whole response."""
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(msgspec.json.encode(self.body()), self.status, headers, "application/json")


def refusal_of(error: PeagleError) -> HttpRefusal:
    """What a typed error of the engine means to a client: its request is wrong, or the server cannot."""
    message = error.in_a_line
    if isinstance(error, QueueFull):
        return HttpRefusal(429, message, code="queue_full", retry_after=1)
    if isinstance(error, UsageError) and not isinstance(error, EngineClosed):
        code = CONTEXT_LENGTH_EXCEEDED if isinstance(error, PromptTooLong) else None
        return HttpRefusal(400, message, param=_field(error.what), code=code)
    return HttpRefusal(503 if isinstance(error, EnvironmentProblem) else 500, message)


def _field(what: str) -> str | None:
    """The field of the body that a refusal of the engine begins with, if it does."""
    name = re.match(r"[a-z_]+", what.replace("the conversation", "messages"))
    return name[0] if name and name[0] in ENGINE_FIELDS else None
