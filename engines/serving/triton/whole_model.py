"""Front model with one response per request: plain inference over HTTP and gRPC, and batches of rows."""

from __future__ import annotations

import threading

import numpy as np

from .front_model import Client, FrontModel
from .local_link import LinkError, Tensors

_COUNTS = ("num_prompt_tokens", "num_output_tokens", "num_draft_rounds", "num_draft_proposed", "num_draft_accepted")
_LAST = ("finish_reason", *_COUNTS, "acceptance_length", "lossy")


class _Row(Client):
    """A row of a request; it is cancelled as well if another row is refused."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.sender)
        self._client, self.is_refused = client, threading.Event()

    def is_unwanted(self) -> bool:
        """Return True if the request or another of its rows has ended."""
        return self.is_refused.is_set() or self._client.is_unwanted()


class WholeModel(FrontModel):
    """The non-decoupled model. The rows of a request run concurrently in the engine."""

    def answer(self, client: Client, tensors: Tensors) -> None:
        """Send the answers of all rows. If a row is refused, raise the first row's error and answer none."""
        count = max(array.shape[0] for array in tensors.values())
        each = _Row(client)
        answers: dict[int, Tensors] = {}
        errors: dict[int, Exception] = {}

        def run(row: int) -> None:
            try:
                found = self._row(each, {name: array[row : row + 1] for name, array in tensors.items()})
                if found is not None:
                    answers[row] = found
            except Exception as error:
                errors[row] = error
                each.is_refused.set()

        threads = [threading.Thread(target=run, args=(row,), daemon=True) for row in range(1, count)]
        for thread in threads:
            thread.start()
        run(0)
        for thread in threads:
            thread.join()
        if errors:
            row, error = min(errors.items())
            raise LinkError(f"row {row}: {error}", error.code) if isinstance(error, LinkError) and count > 1 else error
        if len(answers) == count:
            names = ("text_output", *_LAST)
            found = {name: np.concatenate([answers[row][name] for row in range(count)]) for name in names}
            self.send(client, found, is_last=True)

    def _row(self, client: Client, tensors: Tensors) -> Tensors | None:
        """Return the whole answer to one row, or None if it was cancelled."""
        text: list[bytes] = []
        for piece in self.pieces(client, tensors):
            text.append(piece["text_output"].reshape(-1)[0])
            if "finish_reason" in piece:
                found = {name: piece[name] for name in _LAST}
                return {**found, "text_output": np.array([[b"".join(text)]], np.object_)}
        return None
