"""HTTP errors: status, message for the client and fields for the log. Each API formats them itself."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from ...plugins.errors import EnvironmentProblem, PeagleError, UsageError
from ..errors import EngineClosed, PromptTooLong, QueueFull

# Arguments that the engine validates. APIs have fields of the same names, or declare their own.
ENGINE_FIELDS = frozenset({
    "prompt", "messages", "documents", "chat_template_kwargs", "num_speculative_tokens", "draft", "logit_bias",
    "max_tokens", "min_tokens", "stop_token_ids", "allowed_token_ids", "bad_words", "tools", "structured_outputs",
    "truncate_prompt_tokens", "chat_template", "add_generation_prompt", "continue_final_message", "priority",
})  # fmt: skip
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"  # clients shorten the conversation when they see this code
_MAX_LOGGED = 300  # characters
# Quoted text; an apostrophe inside a word opens no quote. A cut message may lack the closing quote.
_QUOTED = re.compile(r"""(?<!\w)(['"])(?:\\.|(?!\1).)*(?:\1|$)""", re.DOTALL)
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
}


class HttpRefusal(Exception):
    """An HTTP error response.

    ``param`` is the path of the invalid field in the body. ``code`` is a machine-readable code. ``retry_after`` is the
    number of seconds after which the same request may succeed. If it ``is_final``, it would only fail again, and
    clients are told not to repeat it, which they otherwise do for some statuses.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int = 0,
        is_final: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after
        self.is_final = is_final

    @property
    def kind(self) -> str:
        """The error type for the status, as named by OpenAI's and Anthropic's APIs."""
        return _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response."""
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        headers |= {"X-Should-Retry": "false"} if self.is_final else {}  # OpenAI's and Anthropic's clients obey it
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})

    def for_log(self) -> dict[str, Any]:
        """Return the error for the log: shortened, and without text that the message quotes from the request."""
        message = _QUOTED.sub("'...'", self.message)
        entry = {"message": message, "type": self.kind, "param": self.param, "code": self.code}
        return {name: value and str(value)[:_MAX_LOGGED] for name, value in entry.items()}


def shutting_down() -> HttpRefusal:
    """Return the refusal of a request that cannot be answered before the server ends."""
    return HttpRefusal(503, "the server is shutting down", retry_after=1)


def refusal_of(error: PeagleError, fields: Collection[str] = ENGINE_FIELDS) -> HttpRefusal:
    """Convert an engine error to a client error (invalid request) or a server error.

    ``fields`` are the names that the message can start with if it is about a field of the body.
    """
    message = error.one_line
    if isinstance(error, QueueFull):
        fix = "retry when a request has finished, or start the server with a larger --max-queue-size"
        return HttpRefusal(429, f"{error.what}; {error.why}; fix: {fix}", code="queue_full", retry_after=1)
    if isinstance(error, UsageError) and not isinstance(error, EngineClosed):
        code = CONTEXT_LENGTH_EXCEEDED if isinstance(error, PromptTooLong) else None
        return HttpRefusal(400, message, param=_field(error.what, fields), code=code)
    return HttpRefusal(503 if isinstance(error, EnvironmentProblem) else 500, message)


def _field(message: str, fields: Collection[str]) -> str | None:
    """Return the body field that the engine's message starts with, or None."""
    name = re.match(r"[a-z_]+", message.replace("the conversation", "messages"))
    return name[0] if name and name[0] in fields else None
