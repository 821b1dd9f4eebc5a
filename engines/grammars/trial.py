"""A form is tried in a process of its own before it is compiled here, unless it is plainly harmless.

llguidance compiles in the process that asks. A chain of a few thousand references overflows its stack, which ends the
process, and a few dozen patterns that must all hold take it minutes, which nothing can interrupt. Of a process of its
own either is known after some seconds.
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

SECONDS = 4  # of a processor; what passes takes as long again
_PATIENCE = 30  # seconds by the clock, where the machine has other work
HARMLESS = 1000  # characters of a schema without patterns
_BYTES = 2 << 30  # of memory
_STACK = 4 << 20  # bytes, half of what a thread has here
_AT_ONCE = threading.BoundedSemaphore(2)
_REMEMBERED = 4096  # verdicts

# It writes what is wrong with the grammar, as JSON; nothing where it does not come to an end.
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
    """The verdicts of ``try_out`` about forms, remembered: time is a limit, and a second trial may take another one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()  # what is wrong with a form, or nothing

    def require_possible(self, form: StructuredOutputsParams, special: Sequence[str] = ()) -> None:
        """Raise ``UsageError`` for a form that cannot be compiled, ``EnvironmentProblem`` if that cannot be tried."""
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
    """Raise ``UsageError`` for a form that cannot be compiled, with what is wrong, or in too much time or memory.

    ``special`` are the model's special tokens: a grammar may name them. Raises ``EnvironmentProblem`` where no process
    can be started for that, or this machine does not let it come to its end.
    """
    if is_harmless(form):
        return
    is_grammar = form.grammar is not None  # llguidance reads llama.cpp's form in a time that grows as the square
    given = {"path": sys.path, "seconds": SECONDS, "bytes": _BYTES, "stack": _STACK, "limits": LIMITS}
    try:
        given |= {"is_grammar": is_grammar, "text": form.grammar if is_grammar else grammar_text(form)}
    except ValueError as error:
        raise refused(form, str(error)) from None
    given["tokenizer"] = _tokenizer_of(special) if is_grammar and special else "byte"
    command = [sys.executable or "python3", "-c", _CHILD]
    try:
        with _AT_ONCE:
            done = subprocess.run(
                command, input=json.dumps(given).encode(), capture_output=True, timeout=_PATIENCE, check=False
            )
    except subprocess.TimeoutExpired:
        raise _untried(form, f"it had not ended after {_PATIENCE} seconds, of which this machine gave it few") from None
    except OSError as error:
        raise _untried(form, str(error.strerror)) from error
    if b"ImportError" in done.stderr or b"ModuleNotFoundError" in done.stderr:
        raise _untried(form, done.stderr.decode(errors="replace").strip().splitlines()[-1])
    if done.returncode == -signal.SIGKILL:  # by no limit of ours
        raise _untried(form, "it was killed, as by a machine that has no memory left")
    if not done.stdout:
        raise refused(form, f"compiling it takes more than {SECONDS} seconds, or it is nested too deeply")
    if message := json.loads(done.stdout):
        raise refused(form, message)


def _tokenizer_of(special: Sequence[str]) -> str:
    """A tokenizer of bytes and special tokens, as JSON: it is read in no time."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    small = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    small.pre_tokenizer, small.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    small.add_special_tokens([AddedToken(each, normalized=False) for each in special])
    return str(small.to_str())


def is_harmless(form: StructuredOutputsParams) -> bool:
    """Whether a form is compiled in no time, however it is made."""
    if form.json is not None:
        schema = str(form.json)
        return len(schema) <= HARMLESS and "attern" not in schema and "\\" not in schema and not form.whitespace_pattern
    return form.kind == "choice" or (form.kind == "json_object" and not form.whitespace_pattern)


def _untried(form: StructuredOutputsParams, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{NAME}.{form.kind} cannot be tried out in a process of its own",
        why=why,
        fix=f"make sure that {sys.executable or 'python3'} can be started, or give a schema of at most {HARMLESS} "
        "characters, without patterns",
    )
