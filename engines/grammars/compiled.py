"""Grammars over an engine's vocabulary, compiled for every request.

Copies of a llguidance matcher share a lexer, which caches its work. If a step exceeds the work limit, the matcher fails
permanently in all copies. Therefore, each request has its own matcher, which decides the tokens that may follow; copies
are used only for drafts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...plugins.errors import EnvironmentProblem, UsageError
from ...plugins.optional_packages import require
from ..panics import is_library_fault
from ..requests.structured_outputs import NAME, StructuredOutputsParams, structured_of
from .grammar_text import LIMITS, grammar_text
from .messages import first_line, refused
from .path import GrammarPath
from .tally import GrammarTally
from .trial import FormTrials
from .vocabulary import with_texts

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

KEPT = 32  # cached grammars for drafts


class Grammars:
    """The grammars of one engine. Safe from any thread; each caller waits until its grammar is compiled.

    The vocabulary is loaded on first use. Verdicts about a form are cached, so one server always gives the same answer.
    """

    def __init__(self, tokenizer: Callable[[], str], eos_token_ids: frozenset[int], vocab: int) -> None:
        """``vocab`` is the number of the target's logits; the tokenizer may know fewer or more ids.

        ``tokenizer`` returns the JSON of the loaded tokenizer; the folder may contain another one by now.
        """
        self._text, self._eos, self._vocab = tokenizer, eos_token_ids, vocab
        self.tally = GrammarTally()
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._special: Sequence[str] = ()  # special tokens
        self._trials = FormTrials()
        self._kept: OrderedDict[StructuredOutputsParams, LLMatcher] = OrderedDict()  # matchers for drafts

    def path(
        self, form: StructuredOutputsParams | Mapping[str, Any] | None, end_ids: frozenset[int]
    ) -> GrammarPath | None:
        """Return the start of a text of this form that ends with one of ``end_ids``; None if any text is allowed.

        Raises ``UsageError`` for a form that is invalid or too complex, or if no token can end the text. Raises
        ``EnvironmentProblem`` without the ``[grammar]`` extra, and for a tokenizer that llguidance cannot read.
        """
        if (structured_outputs := structured_of(NAME, form)) is None:
            return None
        if not end_ids:
            raise UsageError(
                f"{NAME}: no token can end the text",
                why=(
                    "a structured output must end with an end-of-text token, but this engine or request has no "
                    "such token"
                ),
                fix="remove ignore_eos, or rebuild the engine with an end-of-text token",
            )
        tokenizer = self._vocabulary()
        guide = self._guide(tokenizer, structured_outputs)
        path = GrammarPath(
            _compiled(tokenizer, structured_outputs),
            guide,
            self._vocab,
            sorted(end_ids),
            tokenizer.eos_tokens,
            self.tally,
        )
        self.tally.begin(structured_outputs.kind)
        return path

    def _guide(self, tokenizer: LLTokenizer, form: StructuredOutputsParams) -> LLMatcher:
        """Return a matcher of a form for drafts, at its start. Raises ``UsageError`` if the form cannot be compiled."""
        with self._lock:
            guide = self._kept.get(form)
        if guide is not None:
            copy = guide.deep_copy()
            copy.compute_bitmask()
            if not copy.is_error():  # once one copy exceeds its work limit, all copies fail
                with self._lock:
                    if form in self._kept:
                        self._kept.move_to_end(form)
                return copy
        with self.tally.compiling():
            self._trials.require_possible(form, self._special)
            guide = _compiled(tokenizer, form)
        with self._lock:
            self._kept[form] = guide
            self._kept.move_to_end(form)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return guide.deep_copy()

    @cached_property
    def is_usable(self) -> bool:
        """Load the vocabulary now, and return True if this succeeded.

        If not, requests with a form report the reason.
        """
        try:
            self._vocabulary()
        except EnvironmentProblem:
            return False
        return True

    def require_possible(self, form: StructuredOutputsParams) -> None:
        """Compile a form for the next ``path``. Raises the errors of ``path``."""
        self._guide(self._vocabulary(), form)

    def _vocabulary(self) -> LLTokenizer:
        require("grammar", "structured output")
        import llguidance
        import tokenizers

        with self._lock:
            if self._tokenizer is None:
                try:
                    known = tokenizers.Tokenizer.from_str(self._text())
                    known.no_truncation()  # it encodes forced text: completely, with nothing added
                    known.no_padding()
                    size = max(self._vocab, known.get_vocab_size())
                    read = llguidance.LLTokenizer(known.to_str(), n_vocab=size, eos_token=sorted(self._eos))
                    self._tokenizer = with_texts(read, known, sorted(self._eos), size)
                    self._special = [each.content for each in known.get_added_tokens_decoder().values() if each.special]
                except BaseException as error:  # the bindings raise bare Exception and panics
                    if not is_library_fault(error):
                        raise
                    raise EnvironmentProblem(
                        f"{NAME}: the engine's tokenizer.json cannot be used for grammars",
                        why=first_line(str(error)),
                        fix=f"remove {NAME}: only byte-level and byte-fallback tokenizers are supported",
                    ) from error
            return self._tokenizer


def _compiled(tokenizer: LLTokenizer, form: StructuredOutputsParams) -> LLMatcher:
    """Return the matcher of a form, at its start. Raises ``UsageError``."""
    import llguidance

    limits = llguidance.LLParserLimits(**LIMITS)
    try:
        matcher = llguidance.LLMatcher(tokenizer, grammar_text(form), log_level=0, limits=limits)
    except ValueError as error:
        raise refused(form, str(error)) from error
    if not matcher.is_error():
        matcher.compute_bitmask()  # the first is slow: run it here rather than between the rounds of other requests
    if matcher.is_error():
        raise refused(form, matcher.get_error())
    return matcher
