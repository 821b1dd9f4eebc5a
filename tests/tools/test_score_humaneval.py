"""Answers pass if their function passes the tests of its task, in a sandboxed process."""

from __future__ import annotations

import gzip
import json

import pytest
from score_humaneval import passes, program_of, without_network

from peagle.compiler.bench.workloads import Task, human_eval_file, human_eval_tasks
from peagle.compiler.console.progress import Quiet

PROMPT = '''import math


def half(x):
    return x / 2


def twice(x):
    """Return 2 x."""
'''
TASK = Task("HumanEval/0", PROMPT, "twice", "def check(candidate):\n    assert candidate(3) == 6\n")


@pytest.mark.parametrize(
    "answer",
    [
        "Here it is:\n```python\ndef twice(x):\n    return x + x\n```\nIt adds.",
        "```\ndef twice(x):\n    return 4 * half(x)\n",  # ended by --max-tokens, and with a helper of the prompt
        "```python\nprint('an example')\n```\n```python\ndef twice(x):\n    return math.floor(x) * 2\n```",
        "def twice(x):\n    return 2 * x\n```\nIt multiplies.",  # without the opening fence
        "    return 2 * x\n",  # continues the prompt
        "```python\n    return 2 * x\n```",
        "```python\ndef twice(x):\n    print('noise')\n    return 2 * x\n```",
    ],
)
def test_right_function_passes_wherever_the_answer_has_it(answer: str) -> None:
    assert passes(TASK, answer)


@pytest.mark.parametrize(
    "answer",
    [
        "```python\ndef twice(x):\n    return x\n```",
        "It is easy: multiply by two.",
        "```python\ndef twice(x):\n    return 2 *\n```",
        "```python\ndef double(x):\n    return 2 * x\n```",
        "",
    ],
)
def test_wrong_missing_or_broken_function_fails(answer: str) -> None:
    assert not passes(TASK, answer)


@pytest.mark.parametrize("end", ["raise SystemExit(0)", "import os; os._exit(0)", "print('all passed'); quit()"])
def test_program_that_ends_before_the_tests_fails(end: str) -> None:
    assert not passes(TASK, f"```python\n{end}\ndef twice(x):\n    return 2 * x\n```")


def body(statement: str) -> str:
    return f"```python\ndef twice(x):\n    {statement}\n    return 2 * x\n```"


@pytest.mark.parametrize(
    ("beyond", "within"),
    [
        ("while True: pass", "while False: pass"),
        ("bytes(2 << 30)", "bytes(2 << 20)"),
        ("open('file', 'wb').write(bytes(2 << 20))", "open('file', 'wb').write(bytes(2 << 10))"),
    ],
)
def test_time_memory_and_files_have_limits(beyond: str, within: str) -> None:
    assert not passes(TASK, body(beyond), seconds=1)
    assert passes(TASK, body(within))


def test_program_sees_no_environment_and_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "word")
    assert passes(TASK, body("import os, sys; assert 'SECRET' not in os.environ and not sys.stdin.read()"))


def test_program_has_no_network() -> None:
    before = without_network()
    if not before:
        pytest.skip("`unshare --net` does not work here")
    names = body("import socket; assert [name for _, name in socket.if_nameindex()] == ['lo']")
    assert passes(TASK, names, before)


def test_imports_and_helpers_of_the_prompt_stay_above_the_function() -> None:
    program = program_of(TASK, "```python\ndef twice(x):\n    return 2 * x\n```")
    assert program == PROMPT[: PROMPT.index("def twice")] + "def twice(x):\n    return 2 * x\n\n"


@pytest.mark.slow
def test_reference_solutions_pass_all_tasks() -> None:
    source = human_eval_file(Quiet())
    solutions = [json.loads(line)["canonical_solution"] for line in gzip.decompress(source.read_bytes()).splitlines()]
    tasks, before = human_eval_tasks(source), without_network()
    assert len(tasks) == len(solutions) == 164
    wrong = [task.task_id for task, text in zip(tasks, solutions, strict=True) if not passes(task, text, before)]
    assert wrong == []
