"""The model that holds an engine: what Triton's Python backend calls, each time from the same thread.

Its requests run in the engine's loop together, however many Triton hands over at a time; ``execute`` only submits them.
"""

from __future__ import annotations

import logging
import os
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from ....plugins.errors import PeagleError
from ...engine import Engine
from ...requests.params import SamplingParams
from ...running.submission import Submission
from .backend_utilities import backend_utilities, require_whole_tensors
from .counters import TritonCounters
from .courier import Courier, Letter
from .fields import InputTensors, TensorOptions, parse_tensors, require_known
from .local_link import Listener, Tensors
from .model_settings import ModelSettings, inputs_of, settings_of


class EngineModel:
    """The decoupled model of an engine folder: text, messages or token ids in, pieces of text out."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the engine and have it write a token. Raises ``TritonModelException`` with what is wrong, in a line."""
        self._utilities = utilities = backend_utilities()
        try:
            require_whole_tensors(utilities)
            self._inputs = inputs_of(args)
            self._settings = settings = settings_of(args)
            self._engine = _loaded(settings, utilities)
        except PeagleError as error:
            utilities.Logger.log_error(f"{args['model_name']} cannot be loaded: {error.in_a_line}")
            raise utilities.TritonModelException(error.in_a_line) from None
        labels = {"model_name": settings.name, "version": settings.version}
        engine = self._engine
        counters = TritonCounters(utilities, labels, lambda: engine.load_now)
        utilities.Logger.log_info(
            f"{settings.name} holds {settings.engine}, {settings.max_batch_size} requests at once"
        )
        self._courier = Courier(utilities, counters, settings.request_seconds)
        self._listener = Listener(settings.name, settings.instances, self._begin)
        self._forms = threading.Thread(target=engine.prepare_forms, name="forms")
        self._forms.start()

    def execute(self, requests: Sequence[Any]) -> None:
        """Let the engine run requests; their answers are the courier's."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                require_known(request.parameters(), self._inputs)
                tensors = {each.name(): each.as_numpy() for each in request.inputs()}
            except Exception as error:
                self._courier.refuse(sender, error)
                continue
            self._begin(sender, tensors, request.request_id())

    def finalize(self) -> None:
        """End what runs, answer it, and let the engine go."""
        self._listener.close()
        self._engine.close()
        self._courier.close()
        self._forms.join()

    def _begin(self, sender: Any, tensors: Tensors, name: str = "") -> None:
        """Submit a request, or refuse it; of Triton, or of a model in front."""
        try:
            inputs = InputTensors(tensors)
            if inputs.flag("stop"):
                self._courier.stop(sender, name)
                return
            asked = parse_tensors(inputs)
            self._courier.take(Letter(sender, self._submitted(asked), asked, name))
        except Exception as error:
            if not isinstance(error, PeagleError):
                self._utilities.Logger.log_error(f"a request failed: {traceback.format_exc()}")
            self._courier.refuse(sender, error)

    def _submitted(self, asked: TensorOptions) -> Submission:
        drafts: dict[str, Any] = {"num_speculative_tokens": asked.num_speculative_tokens, "draft": asked.draft}
        timeout = self._settings.request_seconds
        if asked.prompt is not None:
            return self._engine.submit(asked.prompt, asked.params, **drafts, timeout=timeout)
        return self._engine.submit_chat(
            asked.messages,
            asked.params,
            chat_template_kwargs=asked.template_arguments,
            **drafts,
            timeout=timeout,
        )


class _ToTriton(logging.Handler):
    """Hands our warnings to the server's log."""

    def __init__(self, logger: Any) -> None:
        super().__init__(logging.WARNING)
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        self._logger.log_warn(self.format(record))


def _loaded(settings: ModelSettings, utilities: Any) -> Engine:
    """The engine, which has written a token."""
    if settings.gpu is not None:  # the backend of TensorRT takes the first that it sees
        seen = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        os.environ["CUDA_VISIBLE_DEVICES"] = seen[settings.gpu] if settings.gpu < len(seen) else str(settings.gpu)
    log = logging.getLogger("peagle")
    log.handlers[:] = [_ToTriton(utilities.Logger)]
    log.propagate = False
    engine = Engine.load(
        settings.engine,
        max_batch_size=settings.max_batch_size,
        threads=settings.threads,
        max_queue_size=settings.max_queue_size,
    )
    engine.generate([[0]], SamplingParams(max_tokens=1, ignore_eos=True))
    return engine
