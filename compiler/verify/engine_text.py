"""Compare an engine's tokenizer, chat templates and end-of-text tokens with its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...engines.folder.manifest import Manifest
from ...engines.panics import is_library_fault, reason_of
from ...engines.text.template_files import CONFIG, SPECIAL, read_templates
from ...engines.text.tokenizer import Tokenizer
from ...plugins.errors import BuildError, PeagleError
from ...plugins.problems import counted, listed
from ...plugins.regular_files import read_regular
from ...plugins.unique_keys import unique_keys
from ..bundled.prompts import Prompt
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.json_files import MAX_BYTES, parse_json
from ..checkpoints.target import Target
from ..checkpoints.target_and_drafter import GENERATION_CONFIG, end_of_text_ids
from ..store.publish import TOKENIZER
from .parity import checkpoint_problem
from .verdict import Status

_TOKENIZER_FILES = (TOKENIZER, CONFIG, SPECIAL)
# Text that tokenizers treat differently, and one longer than most truncation limits in a tokenizer.json.
_SAMPLES = (
    "",
    " a  b\n\n\tc\r\n",
    "Ünïcödé 漢字 かな 한국어 עברית 🙂👩‍👩‍👧 e\u0301",
    "0123456789 3.14159 1e-9 0xff",
    "https://example.com/?q=a&b=c#d",
    "the quick brown fox jumps over the lazy dog. " * 40,
)
_ADDED = 64  # most added tokens to use as samples
Compared = tuple[list[str], str]  # differences, and the reference


@dataclass(frozen=True)
class TextCheck:
    """Result of one comparison. ``detail``: the reference, the differences, or the reason why it could not run."""

    name: str
    status: Status
    detail: str


def compare_text(folder: Path, manifest: Manifest, prompts: Sequence[Prompt]) -> tuple[TextCheck, ...]:
    """Compare the engine in ``folder`` with the checkpoint of its target, the source of all these files."""
    origin = manifest.target.origin
    if why := checkpoint_problem(origin):
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
    except PeagleError as error:  # the checkpoint is unreadable
        return TextCheck(name, "not checked", error.one_line)
    if differences:
        return TextCheck(name, "failed", listed(differences, 5, "; "))
    return TextCheck(name, "passed", compared_with)


class _DamagedEngine(Exception):
    """The engine's file cannot be read."""


@contextmanager
def _engine_errors() -> Iterator[None]:
    try:
        yield
    except PeagleError as error:
        raise _DamagedEngine(error.one_line) from None


def _tokenizer(folder: Path, source: Path) -> Compared:
    differing = [found for name in _TOKENIZER_FILES if (found := _difference(folder / name, source / name))]
    return differing, "identical to the files of the checkpoint"


def _ids(folder: Path, source: Path, manifest: Manifest, prompts: Sequence[Prompt]) -> Compared:
    """Compare ids with the library's, from the checkpoint's tokenizer without truncation and padding."""
    texts = [prompt.text for prompt in prompts] + [*_SAMPLES]
    expected = _reference(source / TOKENIZER, texts)
    differing = []
    with _engine_errors():
        tokenizer = Tokenizer(folder, manifest.eos_token_ids)
        for text, ids in expected.items():
            if (found := tokenizer.encode(text)) != ids:
                differing.append(f"the token ids of {text[:30]!r}... differ: {found[:8]} instead of {ids[:8]}")
    return differing, f"{counted(expected, 'text')}, same token ids as with the checkpoint's {TOKENIZER}"


def _reference(path: Path, texts: Sequence[str]) -> dict[str, list[int]]:
    """Return the library's ids of the texts and of the added tokens. Raises ``BuildError``."""
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        return {text: list(tokenizer.encode(text).ids) for text in [*texts, *added[:_ADDED]]}
    except BaseException as error:  # the binding raises bare Exception, and may panic
        if not is_library_fault(error):
            raise
        raise BuildError(
            f"{path} cannot be used as a tokenizer", why=reason_of(error), fix="restore the checkpoint's original file"
        ) from error


def _templates(folder: Path, source: Path) -> Compared:
    expected = read_templates(source)
    with _engine_errors():
        found = read_templates(folder)
    differing = [f"template {name!r} is in the engine but not in the checkpoint" for name in found.keys() - expected]
    differing += [f"template {name!r} is in the checkpoint but not in the engine" for name in expected.keys() - found]
    both = found.keys() & expected
    differing += [f"template {name!r} differs" for name in both if found[name] != expected[name]]
    return sorted(differing), f"{counted(expected, 'template')}, same as in the checkpoint"


def _ends(folder: Path, source: Checkpoint, manifest: Manifest) -> Compared:
    expected = end_of_text_ids(Target.of(source))
    differing = []
    if sorted(expected) != sorted(manifest.eos_token_ids):
        differing.append(f"the manifest has {[*manifest.eos_token_ids]}, but the checkpoint has {[*expected]}")
    if found := _difference(folder / GENERATION_CONFIG, source.folder / GENERATION_CONFIG):
        differing.append(found)
    return differing, f"{[*expected]}, same as in the checkpoint"


def _difference(path: Path, reference: Path) -> str:
    """Describe how two files of the same name differ; empty if they have the same bytes or equal JSON content."""
    expected = _content(reference)
    with _engine_errors():
        found = _content(path)
    if found == expected:
        return ""
    if found is None:
        return f"{path.name} is in the checkpoint but not in the engine"
    if expected is None:
        return f"{path.name} is in the engine but not in the checkpoint"
    canonical = _canonical(found)
    return (
        ""
        if canonical is not None and canonical == _canonical(expected)
        else f"{path.name} differs from the checkpoint"
    )


def _content(path: Path) -> bytes | None:
    try:
        return read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BuildError(f"cannot read {path}", why=str(error), fix="check the file's permissions and size") from None


def _canonical(content: bytes) -> str | None:
    """Return a JSON object in canonical form, without ``chat_template``, which an engine stores in its own file.

    None if the content is not a JSON object or has duplicate keys: readers may take either value of those.
    """
    try:
        settings = parse_json(content, unique_keys)
        return json.dumps({name: value for name, value in settings.items() if name != "chat_template"}, sort_keys=True)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
