"""Modes that take turns in a benchmark, from the records of the draft methods that an engine can use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...engines.draft_methods import PLAIN, DraftMethod, Passes
from ...engines.draft_options import drafting_methods, drafts_of, is_auto
from ...engines.folder.manifest import Manifest
from ...engines.policy.drafts_per_round import AUTO, NumSpeculativeTokens
from ...plugins.errors import UsageError

PLAIN_TITLE = "plain"


@dataclass(frozen=True)
class DecodingMode:
    """One way to decode: a draft method with a K, in the ``engine`` of that index.

    ``method`` is the title of the draft method, and ``is_autoregressive`` is True if its drafter makes one pass per
    draft. A server decodes with its own settings; of a peer, only the speed is compared.
    """

    title: str
    method: str
    engine: int
    draft: str
    k: NumSpeculativeTokens
    is_autoregressive: bool = False
    is_server: bool = False
    is_peer: bool = False

    @property
    def is_plain(self) -> bool:
        """Return True for plain decoding."""
        return self.k == 0

    @classmethod
    def of_server(cls, title: str, *, is_peer: bool = False) -> DecodingMode:
        """Return the mode of a server."""
        return cls(title, title, 0, "", AUTO, is_server=True, is_peer=is_peer)

    def of_engine(self) -> DecodingMode:
        """Return the mode with the number of its engine in the title."""
        return replace(self, title=f"{self.title}, engine {self.engine + 1}")


def modes_of(
    manifests: Sequence[Manifest], drafts: Sequence[str] = (), counts: Sequence[NumSpeculativeTokens] = ()
) -> list[DecodingMode]:
    """Return plain decoding with the first engine, and every draft method of each engine at each K.

    ``drafts`` selects methods. ``counts`` are the K, by default the engine's own and ``auto``, which only the engine's
    own method has. A method without a head is measured with the first engine that can use it; the modes of a method of
    several engines name their engine. Raises ``UsageError`` for a method that no engine can use or that would not be
    measured, and for a K that an engine has no room for.
    """
    modes = [DecodingMode(PLAIN_TITLE, PLAIN_TITLE, 0, PLAIN.name, 0)]
    available = {each.name for manifest in manifests for each in drafting_methods(manifest)}
    _require_usable(drafts, available)
    without_head: set[str] = set()
    for index, manifest in enumerate(manifests):
        for method in drafting_methods(manifest):
            if method.name in without_head or (drafts and method.name not in drafts):
                continue
            if not method.needs_head:
                without_head.add(method.name)
            requested = counts or (manifest.speculation.num_speculative_tokens, AUTO)
            modes += [_mode(index, method, k, manifest) for k in requested if k and _has(manifest, method, k)]
    _require_measured(drafts, {mode.draft for mode in modes})
    engines: dict[str, set[int]] = {}
    for mode in modes:
        engines.setdefault(mode.method, set()).add(mode.engine)
    return [mode if len(engines[mode.method]) == 1 else mode.of_engine() for mode in modes]


def _has(manifest: Manifest, method: DraftMethod, k: NumSpeculativeTokens) -> bool:
    return method is manifest.draft_method if is_auto(k) else True


def _mode(index: int, method: DraftMethod, k: NumSpeculativeTokens, manifest: Manifest) -> DecodingMode:
    title = f"{method.title}, {AUTO}" if is_auto(k) else f"{method.title}, K = {drafts_of(manifest, k)}"
    return DecodingMode(title, method.title, index, method.name, k, method.passes is Passes.ONE_PER_DRAFT)


def _require_usable(drafts: Sequence[str], available: set[str]) -> None:
    unknown = [each for each in drafts if each not in available]
    if unknown:
        raise UsageError(
            f"--draft {unknown[0]} is not available: none of the engines supports this draft method",
            why=f"these engines support {', '.join(sorted(available)) or 'only plain decoding'}",
            fix="choose a supported method, or omit --draft; plain decoding is always measured",
        )


def _require_measured(drafts: Sequence[str], measured: set[str]) -> None:
    """Raise ``UsageError`` for a method that was asked for, but has none of the K."""
    missing = [each for each in drafts if each not in measured]
    if missing:
        raise UsageError(
            f"--draft {missing[0]} is not measured with any of these numbers of drafts per round",
            why=f"{AUTO} adapts the number only for the engine's own draft method, and 0 is plain decoding",
            fix="add a number, for example --num-speculative-tokens 4",
        )
