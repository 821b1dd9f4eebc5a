"""Grammars over an engine's vocabulary: compiled once, and begun anew for every text."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...plugins.errors import EnvironmentProblem, UsageError
from ...plugins.optional_packages import require
from ..requests.structured_outputs import NAME, StructuredOutputsParams, structured_of
from .messages import first_line
from .path import GrammarPath

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

KEPT = 32  # grammars


class Grammars:
    """The grammars of one engine. Safe from any thread; who asks for a new one waits until it is compiled.

    The vocabulary is read when the first is asked for, and the grammars used last stay compiled.
    """

    def __init__(self, folder: Path, eos_token_ids: frozenset[int], vocab: int) -> None:
        """``vocab`` is the number of the target's logits; a tokenizer may know fewer ids, or more."""
        self._folder, self._eos, self._vocab = folder, eos_token_ids, vocab
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._kept: OrderedDict[StructuredOutputsParams, LLMatcher] = OrderedDict()

    def path(
        self, form: StructuredOutputsParams | Mapping[str, Any] | None, ends: frozenset[int]
    ) -> GrammarPath | None:
        """Return the beginning of a text of this form, which one of ``ends`` ends; None for any text.

        Raises ``UsageError`` for a form that is none or too complex, or where nothing ends a text;
        ``EnvironmentProblem`` without the extra ``[grammar]``, and for a tokenizer that llguidance cannot read.
        """
        if (asked := structured_of(NAME, form)) is None:
            return None
        if not ends:
            raise UsageError(
                f"{NAME}: nothing ends the text",
                why="it ends where its form does, by an end-of-text token, and this engine or request has none",
                fix="leave out ignore_eos, or rebuild the engine with an end-of-text token",
            )
        tokenizer = self._vocabulary()
        with self._lock:
            matcher = self._kept.get(asked)
        if matcher is None:
            matcher = _compiled(tokenizer, asked)
        with self._lock:
            self._kept[asked] = matcher
            self._kept.move_to_end(asked)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return GrammarPath(matcher.deep_copy(), self._vocab, sorted(ends), tokenizer.eos_tokens)

    def _vocabulary(self) -> LLTokenizer:
        require("grammar", "structured output")
        import llguidance
        import tokenizers

        with self._lock:
            if self._tokenizer is None:
                path = self._folder / "tokenizer.json"
                try:
                    known = tokenizers.Tokenizer.from_file(str(path))
                    known.no_truncation()  # what is forced is encoded by it: whole, and with nothing added
                    known.no_padding()
                    size = max(self._vocab, known.get_vocab_size())
                    self._tokenizer = llguidance.LLTokenizer(known.to_str(), n_vocab=size, eos_token=sorted(self._eos))
                except Exception as error:  # the bindings raise bare Exception
                    raise EnvironmentProblem(
                        f"{NAME}: {path} cannot be used for grammars",
                        why=first_line(str(error)),
                        fix="leave it out: llguidance reads byte-level and byte-fallback tokenizers",
                    ) from error
            return self._tokenizer


def _compiled(tokenizer: LLTokenizer, asked: StructuredOutputsParams) -> LLMatcher:
    """The matcher of a form, at its beginning. Raises ``UsageError``."""
    import llguidance

    limits = llguidance.LLParserLimits(verbose_errors=False)
    try:
        matcher = llguidance.LLMatcher(tokenizer, _grammar(asked), log_level=0, limits=limits)
    except ValueError as error:
        raise _refused(asked, str(error)) from error
    if not matcher.is_error():
        matcher.compute_bitmask()  # the costly one, here and not between the rounds of others
    if matcher.is_error():
        raise _refused(asked, matcher.get_error())
    return matcher


def _grammar(asked: StructuredOutputsParams) -> str:
    """The form as llguidance has it. Raises ``ValueError``."""
    from llguidance import LLMatcher, grammar_from

    if asked.is_json:
        options: JsonCompileOptions = {"whitespace_flexible": False} if asked.disable_any_whitespace else {}
        if asked.whitespace_pattern is not None:
            options["whitespace_pattern"] = asked.whitespace_pattern
        schema = str(asked.json or '{"type": "object"}')
        return LLMatcher.grammar_from_json_schema("{}" if schema == "true" else schema, overrides=options or None)
    if asked.choice is not None:
        return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(each) for each in asked.choice))
    if asked.regex is not None:
        return LLMatcher.grammar_from_regex(asked.regex)
    return grammar_from("grammar", str(asked.grammar))


def _refused(asked: StructuredOutputsParams, message: str) -> UsageError:
    return UsageError(
        f"{NAME}.{asked.kind} cannot be followed", why=first_line(message), fix=f"change {NAME}.{asked.kind}"
    )
