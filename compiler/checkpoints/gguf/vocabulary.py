"""The vocabulary of a GGUF file as lists, checked before a tokenizer is created from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ....engines.panics import is_library_fault, reason_of
from ....plugins.errors import BuildError
from ....plugins.problems import shown
from .header import GgufHeader

UNKNOWN, CONTROL, USER = 2, 3, 4  # values of tokenizer.ggml.token_type
_KEY = "tokenizer.ggml."
_LONGEST = 512  # runs of spaces reach about 100
_OWN = "use another GGUF file of the model, or its safetensors checkpoint"


@dataclass(frozen=True)
class Vocabulary:
    """The metadata of a file below ``tokenizer.ggml``. Every method raises ``BuildError`` for invalid entries."""

    header: GgufHeader

    def tokens(self) -> list[str]:
        """The text of each token."""
        tokens: list[str] = self.field("tokens", list, [])
        if not tokens or not all(isinstance(token, str) for token in tokens):
            raise self.wrong("the file has no valid list of tokens")
        if (longest := max(map(len, tokens))) > _LONGEST:
            raise self.wrong(f"a token has {longest} characters; the limit is {_LONGEST}")
        return tokens

    def ids(self) -> dict[str, int]:
        """Map each token's text to its id."""
        tokens = self.tokens()
        ids = {token: index for index, token in enumerate(tokens)}
        if len(ids) != len(tokens):
            raise self.wrong(f"{len(tokens)} tokens have only {len(ids)} different texts")
        return ids

    def by_kind(self) -> list[tuple[str, int]]:
        """The text and the type of each token. Types are ggml's; empty if the file has none."""
        tokens, kinds = self.tokens(), self.field("token_type", list, [])
        if kinds and len(kinds) != len(tokens):
            raise self.wrong(f"there are {len(tokens)} tokens, but {len(kinds)} token types")
        return list(zip(tokens, kinds, strict=False))

    def scores(self) -> list[float]:
        """The score of each token."""
        tokens = self.tokens()
        scores: list[float] = self.field("scores", list, [])
        if len(scores) != len(tokens):
            raise self.wrong(f"there are {len(tokens)} tokens, but {len(scores)} scores")
        if not all(isinstance(each, float) and math.isfinite(each) for each in scores):
            raise self.wrong("some scores are not finite numbers")
        return scores

    def merges(self) -> list[tuple[str, str]]:
        """The merges in order; empty if the file has none."""
        merges = self.field("merges", list, [])
        pairs = [each.split(" ") for each in merges if isinstance(each, str)]
        if len(pairs) != len(merges) or any(len(pair) != 2 for pair in pairs):
            raise self.wrong("a merge is not two tokens separated by a space")
        return [(left, right) for left, right in pairs]

    def id(self, name: str) -> int | None:
        """Return the id of a special token by its role, such as ``eos``."""
        token, count = self.header.metadata.get(f"{_KEY}{name}_token_id"), len(self.tokens())
        if token is None:
            return None
        if type(token) is not int or not 0 <= token < count:
            raise self.wrong(f"{_KEY}{name}_token_id is {shown(repr(token))}, but there are {count} tokens")
        return token

    def field(self, key: str, kind: type[Any], otherwise: Any) -> Any:
        """Return the entry under a key, which must have the type ``kind``."""
        value = self.header.metadata.get(_KEY + key, otherwise)
        if type(value) is not kind:
            raise self.wrong(f"{_KEY}{key} must be of type {kind.__name__}, not {shown(repr(value))}")
        return value

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Convert the library's exceptions about inconsistent lists to a ``BuildError``."""
        try:
            yield
        except BuildError:
            raise
        except BaseException as error:  # the library raises bare Exception, and panics
            if not is_library_fault(error):
                raise
            raise self.wrong(reason_of(error)) from None

    def wrong(self, why: str) -> BuildError:
        """The error for a damaged tokenizer."""
        return BuildError(f"{self.header.file} has a damaged tokenizer", why=shown(why), fix=_OWN)

    def refused(self, what: str, why: str) -> BuildError:
        """The error for an unsupported tokenizer."""
        return BuildError(f"{self.header.file} has {what}", why=why, fix=_OWN)
