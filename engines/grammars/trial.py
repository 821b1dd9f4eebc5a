"""Tests a form in a separate process before it is compiled here, unless it is simple enough to be safe.

llguidance compiles in the calling process. A chain of a few thousand references overflows its stack, which kills the
process. A few dozen patterns that must all match take it minutes, and nothing can interrupt it. A separate process
detects both within seconds.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence

from ...plugins.errors import EnvironmentProblem, UsageError
from ..requests.structured_outputs import NAME, StructuredOutputsParams
from .grammar_text import LIMITS, grammar_text
from .messages import refused

SECONDS = 4  # CPU time; a form that passes takes as long again here
_PATIENCE = 30  # seconds of wall-clock time, for a busy machine
HARMLESS = 1000  # characters of a schema without patterns
_BYTES = 2 << 30  # memory limit
_STACK = 4 << 20  # bytes, half the size of a thread's stack here
_AT_ONCE = threading.BoundedSemaphore(2)
_REMEMBERED = 4096  # cached verdicts

# Prints the problem of the grammar as JSON, or nothing if it does not finish.
_CHILD = """
import json, sys, threading
given = json.load(sys.stdin)
sys.path[:] = given["path"]
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (given["seconds"], given["seconds"] + 1))
    resource.setrlimit(resource.RLIMIT_AS, (given["bytes"], given["bytes"]))
except (ImportError, ValueError, OSError):
    pass
import llguidance

def compile():
    text = given["text"]
    if given["is_grammar"]:
        try:
            text = llguidance.grammar_from("grammar", text)
        except ValueError as error:
            return str(error)
    limits = llguidance.LLParserLimits(**given["limits"])
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer(given["tokenizer"]), text, log_level=0, limits=limits)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher.get_error()

threading.stack_size(given["stack"])
thread = threading.Thread(target=lambda: print(json.dumps(compile())))
thread.start()
thread.join()
"""


class FormTrials:
    """Cached verdicts of ``try_out``, so that a form near the time limit always gets the same one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()  # the problem of a form, or an empty string

    def require_possible(self, form: StructuredOutputsParams, special: Sequence[str] = ()) -> None:
        """Raise ``UsageError`` for a form that cannot be compiled, ``EnvironmentProblem`` if it cannot be tested."""
        key = hashlib.sha256(repr(form).encode(errors="surrogatepass")).digest()
        with self._lock:
            verdict = self._verdicts.get(key)
        if verdict is None:
            try:
                try_out(form, special)
                verdict = ""
            except UsageError as error:
                verdict = error.why or error.what
        with self._lock:
            self._verdicts[key] = verdict
            self._verdicts.move_to_end(key)
            while len(self._verdicts) > _REMEMBERED:
                self._verdicts.popitem(last=False)
        if verdict:
            raise refused(form, verdict)


def try_out(form: StructuredOutputsParams, special: Sequence[str] = ()) -> None:
    """Raise ``UsageError`` for a form that cannot be compiled within the limits of time and memory.

    ``special`` are the model's special tokens, which a grammar can name. Raises ``EnvironmentProblem`` if the process
    cannot be started or is prevented from finishing.
    """
    if compiles_quickly(form):
        return
    is_grammar = form.grammar is not None  # llguidance's conversion of llama.cpp's format takes quadratic time
    settings = {"path": sys.path, "seconds": SECONDS, "bytes": _BYTES, "stack": _STACK, "limits": LIMITS}
    try:
        settings |= {"is_grammar": is_grammar, "text": form.grammar if is_grammar else grammar_text(form)}
    except ValueError as error:
        raise refused(form, str(error)) from None
    settings["tokenizer"] = _tokenizer_of(special) if is_grammar and special else "byte"
    command = [sys.executable or "python3", "-P", "-c", _CHILD]  # nothing is imported from the current folder
    try:
        with _AT_ONCE:
            done = subprocess.run(
                command, input=json.dumps(settings).encode(), capture_output=True, timeout=_PATIENCE, check=False
            )
    except subprocess.TimeoutExpired:
        raise _trial_not_run(
            form, f"the compilation did not finish within {_PATIENCE} seconds on this busy machine", "try again later"
        ) from None
    except OSError as error:
        raise _trial_not_run(form, str(error.strerror)) from error
    if b"ImportError" in done.stderr or b"ModuleNotFoundError" in done.stderr:
        raise _trial_not_run(form, done.stderr.decode(errors="replace").strip().splitlines()[-1])
    if done.returncode == -signal.SIGKILL:  # not one of our limits
        raise _trial_not_run(form, "the compiling process was killed, probably because the machine ran out of memory")
    if not done.stdout:
        raise refused(form, f"the grammar takes more than {SECONDS} seconds to compile, or is nested too deeply")
    if message := json.loads(done.stdout):
        raise refused(form, message)


def _tokenizer_of(special: Sequence[str]) -> str:
    """Return a minimal tokenizer of bytes and special tokens as JSON, which loads quickly."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    small = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    small.pre_tokenizer, small.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    small.add_special_tokens([AddedToken(each, normalized=False) for each in special])
    return str(small.to_str())


def compiles_quickly(form: StructuredOutputsParams) -> bool:
    """Return True if a form is so small that it always compiles quickly."""
    if form.json is not None:
        schema = str(form.json)
        return len(schema) <= HARMLESS and "attern" not in schema and "\\" not in schema and not form.whitespace_pattern
    return form.kind == "choice" or (form.kind == "json_object" and not form.whitespace_pattern)


def _trial_not_run(form: StructuredOutputsParams, why: str, fix: str = "") -> EnvironmentProblem:
    fix = fix or f"make sure that {sys.executable or 'python3'} can be started"
    return EnvironmentProblem(
        f"{NAME}.{form.kind} cannot be tested in a separate process",
        why=why,
        fix=f"{fix}, or use a schema of at most {HARMLESS} characters without patterns",
    )
