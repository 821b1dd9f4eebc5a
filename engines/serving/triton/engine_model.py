"""The Triton model that holds an engine. Triton's Python backend calls it, always from the same thread.

Its requests run together in the engine's loop, regardless of how Triton batches them; ``execute`` only submits them.
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
from .fields import InputTensors, TensorOptions, parse_tensors, require_known
from .local_link import Listener, Tensors
from .model_settings import ModelSettings, inputs_of, settings_of
from .response_sender import PendingRequest, ResponseSender


class EngineModel:
    """The decoupled model of an engine folder: text, messages or token ids in, pieces of text out."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the engine and generate one token. Raises ``TritonModelException`` with a one-line message."""
        self._utilities = utilities = backend_utilities()
        try:
            require_whole_tensors(utilities)
            self._inputs = inputs_of(args)
            self._settings = settings = settings_of(args)
            self._engine = _loaded(settings, utilities)
        except PeagleError as error:
            utilities.Logger.log_error(f"cannot load {args['model_name']}: {error.one_line}")
            raise utilities.TritonModelException(error.one_line) from None
        labels = {"model_name": settings.name, "version": settings.version}
        engine = self._engine
        counters = TritonCounters(utilities, labels, lambda: engine.load_now)
        utilities.Logger.log_info(
            f"{settings.name}: loaded {settings.engine}, up to {settings.max_batch_size} concurrent requests"
        )
        self._sender = ResponseSender(utilities, counters, settings.request_seconds)
        self._listener = Listener(settings.name, settings.instances, self._begin)
        self._forms = threading.Thread(target=engine.prepare_forms, name="forms")
        self._forms.start()

    def execute(self, requests: Sequence[Any]) -> None:
        """Submit requests to the engine; the courier sends the responses."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                require_known(request.parameters(), self._inputs)
                tensors = {each.name(): each.as_numpy() for each in request.inputs()}
            except Exception as error:
                self._sender.refuse(sender, error)
                continue
            self._begin(sender, tensors, request.request_id())

    def finalize(self) -> None:
        """Finish running requests, and close the engine.

        Triton waits for its own requests before it calls this, but does not know of those of front models.
        """
        self._listener.close()
        self._sender.close()
        self._engine.close()
        self._forms.join()

    def _begin(self, sender: Any, tensors: Tensors, name: str = "") -> None:
        """Submit or refuse a request, which comes from Triton or from a front model."""
        try:
            inputs = InputTensors(tensors)
            if inputs.flag("stop"):
                self._sender.stop(sender, name)
                return
            options = parse_tensors(inputs)
            self._sender.take(PendingRequest(sender, self._submitted(options), options, name))
        except Exception as error:
            if not isinstance(error, PeagleError):
                self._utilities.Logger.log_error(f"a request failed: {traceback.format_exc()}")
            self._sender.refuse(sender, error)

    def _submitted(self, options: TensorOptions) -> Submission:
        drafts: dict[str, Any] = {"num_speculative_tokens": options.num_speculative_tokens, "draft": options.draft}
        timeout = self._settings.request_seconds
        if options.prompt is not None:
            return self._engine.submit(options.prompt, options.params, **drafts, timeout=timeout)
        return self._engine.submit_chat(
            options.messages,
            options.params,
            chat_template_kwargs=options.template_arguments,
            **drafts,
            timeout=timeout,
        )


class _ToTriton(logging.Handler):
    """Forwards the engine's warnings to the server's log."""

    def __init__(self, logger: Any) -> None:
        super().__init__(logging.WARNING)
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        self._logger.log_warn(self.format(record))


def _loaded(settings: ModelSettings, utilities: Any) -> Engine:
    """Return the engine after it has generated a token."""
    if settings.gpu is not None:  # the TensorRT backend uses the first visible GPU
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
        draft=settings.draft,
        drafters=settings.drafters,
    )
    engine.generate([[0]], SamplingParams(max_tokens=1, ignore_eos=True))
    return engine
