"""The vocabulary of a GGUF file as lists: what is in it, checked before a tokenizer is made of it."""

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

UNKNOWN, CONTROL, USER = 2, 3, 4  # of tokenizer.ggml.token_type
_KEY = "tokenizer.ggml."
_LONGEST = 512  # runs of spaces have some 100
_OWN = "use a file of the model whose tokenizer is whole, or the safetensors of the model"


@dataclass(frozen=True)
class Vocabulary:
    """The metadata of a file below ``tokenizer.ggml``; every method raises ``BuildError`` for what is odd."""

    header: GgufHeader

    def tokens(self) -> list[str]:
        """The text of each token."""
        tokens: list[str] = self.said("tokens", list, [])
        if not tokens or not all(isinstance(token, str) for token in tokens):
            raise self.wrong("it has no list of tokens")
        if (longest := max(map(len, tokens))) > _LONGEST:
            raise self.wrong(f"a token has {longest} characters; {_LONGEST} are the most here")
        return tokens

    def ids(self) -> dict[str, int]:
        """The id of each token by its text."""
        tokens = self.tokens()
        ids = {token: index for index, token in enumerate(tokens)}
        if len(ids) != len(tokens):
            raise self.wrong(f"{len(tokens)} tokens have {len(ids)} different texts")
        return ids

    def by_kind(self) -> list[tuple[str, int]]:
        """The text and the kind of each token; kinds are ggml's, and none are known where the file has none."""
        tokens, kinds = self.tokens(), self.said("token_type", list, [])
        if kinds and len(kinds) != len(tokens):
            raise self.wrong(f"{len(tokens)} tokens have {len(kinds)} kinds")
        return list(zip(tokens, kinds, strict=False))

    def scores(self) -> list[float]:
        """The score of each token."""
        tokens = self.tokens()
        scores: list[float] = self.said("scores", list, [])
        if len(scores) != len(tokens) or not all(isinstance(each, float) and math.isfinite(each) for each in scores):
            raise self.wrong(f"{len(tokens)} tokens have {len(scores)} scores, or some are not numbers")
        return scores

    def merges(self) -> list[tuple[str, str]]:
        """The pairs that are merged, in their order; empty where the file has none."""
        stated = self.said("merges", list, [])
        pairs = [each.split(" ") for each in stated if isinstance(each, str)]
        if len(pairs) != len(stated) or any(len(pair) != 2 for pair in pairs):
            raise self.wrong("a merge is not two tokens with a space between them")
        return [(left, right) for left, right in pairs]

    def id(self, name: str) -> int | None:
        """The id that the file has for a token by its role, as ``eos``."""
        token, count = self.header.metadata.get(f"{_KEY}{name}_token_id"), len(self.tokens())
        if token is None:
            return None
        if type(token) is not int or not 0 <= token < count:
            raise self.wrong(f"{_KEY}{name}_token_id is {shown(repr(token))}, and there are {count} tokens")
        return token

    def said(self, key: str, kind: type[Any], otherwise: Any) -> Any:
        """What the file says under a key; it has to be of a ``kind``."""
        value = self.header.metadata.get(_KEY + key, otherwise)
        if type(value) is not kind:
            raise self.wrong(f"{_KEY}{key} is {shown(repr(value))}")
        return value

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Turn what the library says of lists that do not fit each other into an error of ours."""
        try:
            yield
        except BuildError:
            raise
        except BaseException as error:  # the library raises bare Exception, and panics
            if not is_library_fault(error):
                raise
            raise self.wrong(reason_of(error)) from None

    def wrong(self, why: str) -> BuildError:
        """The error of a tokenizer that is not whole."""
        return BuildError(f"{self.header.file} has a tokenizer that is not whole", why=shown(why), fix=_OWN)

    def refused(self, what: str, why: str) -> BuildError:
        """The error of a tokenizer that is not read."""
        return BuildError(f"{self.header.file} has {what}", why=why, fix=_OWN)
