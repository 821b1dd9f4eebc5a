"""Base class of front models, which forward to the engine's model with other tensors or another response policy."""

from __future__ import annotations

import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ....plugins.errors import PeagleError, UsageError
from .backend_utilities import backend_utilities, error_of, require_whole_tensors
from .fields import InputTensors, require_known
from .local_link import LinkError, Tensors, send_request
from .model_settings import inputs_of, parameters_of, places_of

POLL_SECONDS = 0.05  # between two polls for cancellation


class Client:
    """The sender of a request, and whether it still waits for the answer."""

    def __init__(self, sender: Any) -> None:
        self.sender, self.is_gone, self.is_answered = sender, False, False
        self._polled_at, self._lock = 0.0, threading.Lock()

    def is_unwanted(self) -> bool:
        """Return True if the request was cancelled.

        Must not be called after the last response: Triton's server would crash.
        """
        with self._lock:
            if not self.is_gone and time.monotonic() - self._polled_at > POLL_SECONDS:
                self._polled_at = time.monotonic()
                if self.sender.is_cancelled():  # slow; `stop` may be set meanwhile
                    self.is_gone = True
            return self.is_gone


class FrontModel(ABC):
    """Implements Triton's model interface. Each request is answered by a thread of its own, whole or in pieces."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read which model holds the engine. Raises ``TritonModelException``."""
        self.utilities = backend_utilities()
        try:
            require_whole_tensors(self.utilities)
            values, self._inputs = parameters_of(args), inputs_of(args)
            self._engine_model, self._places = values["engine_model"], places_of(values)
        except PeagleError as error:
            self.utilities.Logger.log_error(f"cannot load {args['model_name']}: {error.one_line}")
            raise self.utilities.TritonModelException(error.one_line) from None
        self._running: dict[str, Client] = {}
        self._threads: set[threading.Thread] = set()

    def execute(self, requests: Sequence[Any]) -> None:
        """Start to answer requests. Their tensors are read here, because Triton frees them afterwards."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                require_known(request.parameters(), self._inputs)
                tensors = {each.name(): np.array(each.as_numpy()) for each in request.inputs()}
            except Exception as error:
                self._fail(sender, error)
                continue
            arguments = (Client(sender), request.request_id(), tensors)
            thread = threading.Thread(target=self._carry, args=arguments, daemon=True)
            self._threads.add(thread)
            thread.start()

    def finalize(self) -> None:
        """Wait for the running requests."""
        for thread in list(self._threads):
            thread.join()

    @abstractmethod
    def answer(self, client: Client, tensors: Tensors) -> None:
        """Answer a request completely, unless its client disconnects first."""

    def pieces(self, client: Client, tensors: Tensors) -> Iterator[Tensors]:
        """Yield the responses of the engine's model. Raises ``LinkError`` and ``EnvironmentProblem``."""
        wanted = {**tensors, "stream": np.array([[True]])}
        return send_request(self._engine_model, self._places, wanted, client.is_unwanted)

    def send(self, client: Client, tensors: Mapping[str, np.ndarray], *, is_last: bool) -> None:
        """Send a response."""
        outputs = [self.utilities.Tensor(name, array) for name, array in tensors.items()]
        flags = self.utilities.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0
        client.is_answered = is_last
        client.sender.send(self.utilities.InferenceResponse(output_tensors=outputs), flags=flags)

    def _carry(self, client: Client, name: str, tensors: Tensors) -> None:
        try:
            if InputTensors(tensors).flag("stop"):
                self._stop(name)
                self.send(client, {}, is_last=True)
                return
            if name:
                self._running[name] = client
            self.answer(client, tensors)
            if not client.is_answered:
                raise LinkError("the request was canceled", "CANCELLED")
        except Exception as error:
            self._fail(client.sender, error)
        finally:
            if self._running.get(name) is client:
                del self._running[name]
            self._threads.discard(threading.current_thread())

    def _stop(self, name: str) -> None:
        client = self._running.get(name)
        if client is None:
            raise UsageError(
                f"no running request has the id {name!r}", fix="send `stop` with the id of a running request"
            )
        client.is_gone = True

    def _fail(self, sender: Any, error: Exception) -> None:
        if isinstance(error, LinkError):
            triton_error = self.utilities.TritonError(str(error), getattr(self.utilities.TritonError, error.code))
        else:
            triton_error = error_of(self.utilities, error)
            if not isinstance(error, PeagleError):
                self.utilities.Logger.log_error(f"a request failed: {traceback.format_exc()}")
        try:
            response = self.utilities.InferenceResponse(error=triton_error)
            sender.send(response, flags=self.utilities.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        except Exception as failure:
            self.utilities.Logger.log_error(f"a response could not be sent: {failure}")
