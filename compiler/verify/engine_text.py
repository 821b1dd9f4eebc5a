"""What an engine does with text, against its checkpoint: tokenizer, chat template and end-of-text tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engines.folder.manifest import Manifest
from ...engines.panics import is_library_fault, reason_of
from ...engines.text.template_files import CONFIG, SPECIAL, read_templates
from ...engines.text.tokenizer import Tokenizer
from ...plugins.errors import BuildError, PeagleError
from ...plugins.problems import counted, listed
from ...plugins.regular_files import read_regular
from ..bundled.prompts import Prompt
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.json_files import MAX_BYTES, parse_json
from ..checkpoints.target import Target
from ..checkpoints.target_and_drafter import GENERATION_CONFIG, end_of_text_ids
from ..store.publish import TOKENIZER
from .parity import gone
from .verdict import Status

_TOKENIZER_FILES = (TOKENIZER, CONFIG, SPECIAL)
# What tokenizers treat in ways of their own, and a text longer than most limits that a tokenizer.json may set.
_SAMPLES = (
    "",
    " a  b\n\n\tc\r\n",
    "Ünïcödé 漢字 かな 한국어 עברית 🙂👩‍👩‍👧 e\u0301",
    "0123456789 3.14159 1e-9 0xff",
    "https://example.com/?q=a&b=c#d",
    "the quick brown fox jumps over the lazy dog. " * 40,
)
_ADDED = 64  # the most added tokens whose text is a sample
Compared = tuple[list[str], str]  # what differs, and what it was compared with


@dataclass(frozen=True)
class TextCheck:
    """One comparison of files or ids; ``detail``: with what, what differs, or why it could not be made."""

    name: str
    status: Status
    detail: str


def compare_text(folder: Path, manifest: Manifest, prompts: Sequence[Prompt]) -> tuple[TextCheck, ...]:
    """Compare the engine in ``folder`` with the checkpoint of its target, from which a build takes all of this."""
    origin = manifest.target.origin
    if why := gone(origin):
        return (TextCheck("text", "not checked", why),)
    source = Checkpoint.open(Path(origin.source))
    comparisons: dict[str, Callable[[], Compared]] = {
        "tokenizer": lambda: _tokenizer(folder, source.folder),
        "token ids": lambda: _ids(folder, source.folder, manifest, prompts),
        "chat template": lambda: _templates(folder, source.folder),
        "end-of-text tokens": lambda: _ends(folder, source, manifest),
    }
    return tuple(_check(name, compare) for name, compare in comparisons.items())


def _check(name: str, compare: Callable[[], Compared]) -> TextCheck:
    try:
        differences, compared_with = compare()
    except _DamagedEngine as error:
        return TextCheck(name, "failed", str(error))
    except PeagleError as error:  # the checkpoint's side
        return TextCheck(name, "not checked", error.one_line)
    if differences:
        return TextCheck(name, "failed", listed(differences, 5, "; "))
    return TextCheck(name, "passed", compared_with)


class _DamagedEngine(Exception):
    """The engine's side of a comparison cannot be read."""


@contextmanager
def _of_engine() -> Iterator[None]:
    try:
        yield
    except PeagleError as error:
        raise _DamagedEngine(error.one_line) from None


def _tokenizer(folder: Path, source: Path) -> Compared:
    differing = [found for name in _TOKENIZER_FILES if (found := _difference(folder / name, source / name))]
    return differing, "the files of the checkpoint"


def _ids(folder: Path, source: Path, manifest: Manifest, prompts: Sequence[Prompt]) -> Compared:
    """Compare with what the library makes of the checkpoint's tokenizer, with neither truncation nor padding."""
    texts = [prompt.text for prompt in prompts] + [*_SAMPLES]
    expected = _reference(source / TOKENIZER, texts)
    differing = []
    with _of_engine():
        tokenizer = Tokenizer(folder, manifest.eos_token_ids)
        for text, ids in expected.items():
            if (found := tokenizer.encode(text)) != ids:
                differing.append(f"the ids of {text[:30]!r}... are others: {found[:8]} and not {ids[:8]}")
    return differing, f"{counted(expected, 'text')} have the ids that the checkpoint's {TOKENIZER} gives"


def _reference(path: Path, texts: Sequence[str]) -> dict[str, list[int]]:
    """The ids that the library gives to the texts, and to those of added tokens. Raises ``BuildError``."""
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        return {text: list(tokenizer.encode(text).ids) for text in [*texts, *added[:_ADDED]]}
    except BaseException as error:  # the binding raises bare Exception, and panics
        if not is_library_fault(error):
            raise
        raise BuildError(f"{path} cannot be used as a tokenizer", why=reason_of(error)) from error


def _templates(folder: Path, source: Path) -> Compared:
    expected = read_templates(source)
    with _of_engine():
        found = read_templates(folder)
    differing = [f"the engine has a template {name!r}, the checkpoint has none" for name in found.keys() - expected]
    differing += [f"the engine has no template {name!r}, the checkpoint has one" for name in expected.keys() - found]
    both = found.keys() & expected
    differing += [f"the template {name!r} is another" for name in both if found[name] != expected[name]]
    return sorted(differing), f"{counted(expected, 'template')}, as in the checkpoint"


def _ends(folder: Path, source: Checkpoint, manifest: Manifest) -> Compared:
    expected = end_of_text_ids(Target.of(source))
    differing = []
    if sorted(expected) != sorted(manifest.eos_token_ids):
        differing.append(f"the manifest has {[*manifest.eos_token_ids]}, the checkpoint {[*expected]}")
    if found := _difference(folder / GENERATION_CONFIG, source.folder / GENERATION_CONFIG):
        differing.append(found)
    return differing, f"{[*expected]}, as in the checkpoint"


def _difference(ours: Path, theirs: Path) -> str:
    """Say how two files of one name differ; empty where they have the same bytes, or say the same as JSON."""
    expected = _content(theirs)
    with _of_engine():
        found = _content(ours)
    if found == expected:
        return ""
    if found is None:
        return f"the engine has no {ours.name}, the checkpoint has one"
    if expected is None:
        return f"the engine has a {ours.name}, the checkpoint has none"
    said = _said(found)
    return "" if said is not None and said == _said(expected) else f"{ours.name} is not the checkpoint's"


def _content(path: Path) -> bytes | None:
    try:
        return read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BuildError(f"cannot read {path}", why=str(error)) from None


def _said(content: bytes) -> str | None:
    """Return what a JSON object says but for its template, which is a file of its own in an engine.

    None for what is none, and for one with a key twice, of which readers may take either.
    """
    try:
        said = parse_json(content, _unique)
        return json.dumps({name: value for name, value in said.items() if name != "chat_template"}, sort_keys=True)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found
