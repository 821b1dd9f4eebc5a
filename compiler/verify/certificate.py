"""A certificate: the record of which tokens were compared with plain decoding, sealed by a hash of its own content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...engines.folder.strict_json import decode
from ...plugins.errors import UsageError
from ...plugins.regular_files import read_regular
from ..bundled.prompts import varied_prompts
from ..store.atomic_files import replacing
from .losslessness import Divergence, Losslessness

_SEAL, _FORMAT = "sha256", 1
_DERIVED = ("tokens_compared", "tokens_differing", "ties", "drafts_accepted")
_FIX = "choose another file, or remove this one to start again"
_MAX_BYTES = 1 << 28
_SHOWN = 10  # differences that a comparison keeps


@dataclass(frozen=True)
class Comparison:
    """One finished comparison: prompts ``first_prompt`` and the next ones, with one draft method, at every K.

    The prompts are those of ``varied_prompts``; the number of a prompt is also its seed. ``drafts_accepted``: number of
    drafts that were accepted in the compared texts. ``finite``: the logits of the first prompt are finite.
    ``plain_sha256``: hash of the tokens of plain decoding. ``divergences``: the first changed token of some texts.
    """

    draft: str
    first_prompt: int
    prompts: int
    tokens_compared: int
    tokens_differing: int
    ties: int
    drafts_accepted: int
    finite: bool
    plain_sha256: str
    divergences: tuple[Divergence, ...] = ()

    @classmethod
    def of(cls, compared: Losslessness, first_prompt: int) -> Comparison:
        """Return the record of a comparison."""
        return cls(
            draft=compared.draft,
            first_prompt=first_prompt,
            prompts=compared.prompts,
            tokens_compared=compared.tokens_compared,
            tokens_differing=compared.tokens_differing,
            ties=compared.ties,
            drafts_accepted=compared.drafts_accepted,
            finite=compared.finite,
            plain_sha256=compared.plain_sha256,
            divergences=tuple(each for each in compared.divergences if not each.tie)[:_SHOWN],
        )


@dataclass(frozen=True)
class ComparedEngine:
    """The compared engine.

    ``fingerprint`` is a hash of the names and hashes of its files. ``checkpoints`` are those of the components, each
    with a hash of its content.
    """

    name: str
    fingerprint: str
    product_version: str
    backend: str
    lowering: str
    precision: str
    max_seq_len: int
    checkpoints: Mapping[str, str]


@dataclass(frozen=True)
class ComparedOptions:
    """Options of all comparisons: draft methods, K (0 is plain decoding in batches), policies, batch, tokens per text.

    ``threads``: None is the engine's own number.
    """

    drafts: tuple[str, ...]
    k: tuple[int, ...]
    policies: tuple[str, ...]
    batch: int
    max_tokens: int
    threads: int | None


@dataclass(frozen=True)
class ComparingMachine:
    """The machine, the instruction set of the project's CPU kernels (empty without them), and the versions."""

    machine: str
    gpus: tuple[str, ...]
    kernels: str
    versions: str


@dataclass(frozen=True)
class Certificate:
    """All finished comparisons of one engine with the same options on the same machine, and the ``command`` for them.

    ``began`` and ``ended`` are times (UTC). ``notes``: prompts and outputs that were cut to the engine's length limit.
    """

    engine: ComparedEngine
    options: ComparedOptions
    machine: ComparingMachine
    command: str
    began: str
    ended: str
    comparisons: tuple[Comparison, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def tokens_compared(self) -> int:
        """Number of tokens that were compared with the output of plain decoding."""
        return sum(each.tokens_compared for each in self.comparisons)

    @property
    def tokens_differing(self) -> int:
        """Number of tokens that differ, ties aside."""
        return sum(each.tokens_differing for each in self.comparisons)

    @property
    def ties(self) -> int:
        """Number of texts that diverge at a tie, and are compared up to there."""
        return sum(each.ties for each in self.comparisons)

    @property
    def drafts_accepted(self) -> int:
        """Number of drafts that were accepted in the compared texts."""
        return sum(each.drafts_accepted for each in self.comparisons)

    @property
    def prompts(self) -> int:
        """Number of different prompts, the first ones of ``varied_prompts``."""
        return max((each.first_prompt + each.prompts for each in self.comparisons), default=0)

    @property
    def drafts(self) -> tuple[str, ...]:
        """Draft methods that were compared: all of the options, unless the record ends before their first turn."""
        return tuple(dict.fromkeys(each.draft for each in self.comparisons))

    @property
    def seal(self) -> str:
        """SHA-256 of the content as canonical JSON. It shows accidental changes; it is not a signature."""
        seal: str = self.as_json()[_SEAL]
        return seal

    def losslessness(self, path: Path) -> Losslessness:
        """Return all comparisons as one result of ``verify``; ``path`` is the file of the record."""
        options = self.options
        recorded = f"{path} is the record of {self.drafts_accepted} accepted drafts; its SHA-256 is {self.seal}"
        return Losslessness(
            prompts=self.prompts,
            max_tokens=options.max_tokens,
            k=options.k,
            policies=options.policies,
            tokens_compared=self.tokens_compared,
            tokens_differing=self.tokens_differing,
            acceptance_length={},
            divergences=tuple(divergence for each in self.comparisons for divergence in each.divergences),
            ties=self.ties,
            notes=(*self.notes, recorded),
            finite=all(each.finite for each in self.comparisons),
            draft=", ".join(self.drafts),
            batch=options.batch,
            drafts_accepted=self.drafts_accepted,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        content: dict[str, Any] = {
            "certificate_format": _FORMAT,
            **{name: getattr(self, name) for name in _DERIVED},
            **asdict(self),
            "prompts": {"count": self.prompts, "sha256": _digest_of_prompts(self.prompts)},
        }
        content = json.loads(json.dumps(content, allow_nan=False))
        return {**content, _SEAL: _sha256(content)}

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        with replacing(path) as temporary:
            temporary.write_text(_layout(self.as_json()), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Certificate:
        """Return the record in a file. Raises ``UsageError`` if it is none, or was changed after it was written."""
        try:
            content = json.loads(read_regular(path, _MAX_BYTES))
            seal = content.pop(_SEAL)
            number = content.pop("certificate_format")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(
                f"{path} is not a certificate of `peagle-compile verify`", why=str(error), fix=_FIX
            ) from None
        if seal != _sha256({"certificate_format": number, **content}):
            raise UsageError(
                f"{path} was changed after it was written",
                why="the content does not match the recorded SHA-256",
                fix=_FIX,
            )
        for name in (*_DERIVED, "prompts"):
            content.pop(name, None)
        problems: list[str] = []
        found = decode(cls, content, problems)
        if found is None or number != _FORMAT:
            why = "; ".join(problems) or f"the file has format {number}, but this version reads format {_FORMAT}"
            raise UsageError(f"{path} cannot be continued", why=why, fix=_FIX)
        if found.seal != seal:
            raise UsageError(
                f"{path} cannot be continued",
                why="the totals or prompts in the file do not match this version",
                fix=_FIX,
            )
        return found

    def continued_as(self, other: Certificate, path: Path) -> Certificate:
        """Return the comparisons of this record with the command of ``other``.

        Raises ``UsageError`` if ``other`` has another engine, other options or another machine.
        """
        for part in ("engine", "options", "machine"):
            own, its = getattr(self, part), getattr(other, part)
            for name in (each.name for each in dataclasses.fields(own)):
                if getattr(own, name) != getattr(its, name):
                    raise UsageError(
                        f"{path} was made with another {part.removesuffix('s')}",
                        why=f"{name} is now {getattr(its, name)!r}, but the file has {getattr(own, name)!r}",
                        fix=f"choose another file, or continue it with `{self.command}`",
                    )
        return replace(self, command=other.command)

    def with_comparison(self, compared: Losslessness, first_prompt: int, ended: str) -> Certificate:
        """Return the record with one more comparison."""
        done = (*self.comparisons, Comparison.of(compared, first_prompt))
        notes = tuple(dict.fromkeys((*self.notes, *compared.notes)))
        return replace(self, comparisons=done, notes=notes, ended=ended)


def _digest_of_prompts(count: int) -> str:
    return _sha256([prompt.text for prompt in varied_prompts(0, count)])


def _layout(content: Mapping[str, Any]) -> str:
    """Return indented JSON with one line per comparison."""
    empty, rows = (
        '"comparisons": []',
        ",\n    ".join(json.dumps(each, ensure_ascii=False) for each in content["comparisons"]),
    )
    text = json.dumps({**content, "comparisons": []}, indent=2, ensure_ascii=False)
    return text.replace(empty, f'"comparisons": [\n    {rows}\n  ]' if rows else empty) + "\n"


def _sha256(value: Any) -> str:
    """Return the SHA-256 of a value as canonical JSON: sorted keys, no spaces, UTF-8."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
