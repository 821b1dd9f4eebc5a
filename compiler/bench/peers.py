"""Peers of a benchmark: other servers that answer the same prompts and take turns with the engines.

Users start the peers themselves, because each has its own installation, model file and options. A peer that fails is
dropped with a note; the measurements of the engines and of the other peers are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...plugins.errors import EnvironmentProblem, UsageError
from .measure import ModeTurn
from .server import ENDPOINTS, BenchServer, Content
from .workloads import EncodedPrompt


@dataclass
class Peer:
    """A server, what it is sent, and why it left: ``problem`` is empty as long as it answers."""

    server: BenchServer
    contents: Sequence[Content]
    seed: int
    problem: str = ""

    @classmethod
    def start(
        cls,
        server: BenchServer,
        fields: Mapping[str, object],
        prompts: Sequence[EncodedPrompt],
        seed: int,
        temperatures: Sequence[float],
    ) -> Peer:
        """Send the first prompt at each temperature, which is not counted, and return the peer.

        ``fields`` are those of every request. Raises ``UsageError`` for prompts without text at an endpoint that takes
        no token ids, and ``EnvironmentProblem`` if the server does not answer.
        """
        takes_ids = ENDPOINTS[server.endpoint].takes_ids
        if not takes_ids and not all(each.prompt.text for each in prompts):
            raise UsageError(
                f"--endpoint {server.endpoint} takes text, but these prompts are token ids",
                fix="use --endpoint completions, or another --workload",
            )
        contents = [[*each.input.ids] if takes_ids else each.prompt.text for each in prompts]
        peer = cls(replace(server, fields=fields), contents, seed)
        for temperature in temperatures:
            peer.server.warm_up(contents, seed, temperature)
        return peer

    @property
    def description(self) -> str:
        """Where it is and what it is sent, for the origin of the figures."""
        sent = "token ids" if ENDPOINTS[self.server.endpoint].takes_ids else "text"
        return f"{self.server.url}, model {self.server.model}, {sent} to {self.server.endpoint}"

    def answer(self, group: Sequence[int], temperature: float) -> ModeTurn | None:
        """Answer a group of prompts, by index; None once the server has failed."""
        if self.problem:
            return None
        try:
            return self.server.answer(group, self.contents, self.seed, temperature)
        except EnvironmentProblem as error:
            self.problem = error.one_line
            return None
