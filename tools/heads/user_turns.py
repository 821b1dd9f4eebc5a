"""The beginnings of user turns in training dialogues.

Some are signatures from the standard library, others openings that the target completes itself.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from itertools import count, islice

from corpus import load_corpus

# Shares of the dialogues: a signature with its docstring, code that the target asks for itself, anything else.
SIGNATURES, CODE = 0.25, 0.45

KINDS = ("signature", "invented", "code", "other")

LONGEST_DOCSTRING = 500  # characters

_VERBS = (
    "add all any append average build check choose clean collect combine compute convert copy count decode delete "
    "encode expand extract fill filter find first flatten format group has insert invert is join last list longest "
    "make map match max mean median merge min move nearest normalize number pack pad pair parse pick position print "
    "product rank read remove repeat replace reverse rotate round sample search select shift shortest shuffle sort "
    "split strip sum swap to total transpose trim unique update validate weight wrap zip"
)
_NOUNS = (
    "angles array balance bits blocks bounds brackets bytes cells characters chunks colors columns commas cubes dates "
    "days dictionary digits distance edges elements entries factors files fractions frequencies graph grid groups "
    "heights indices integers intervals items keys labels letters lines list matches matrix minutes mode names nodes "
    "numbers objects pairs palindrome paths peaks points powers prefix prices primes products queue range ranges "
    "records rows scores sentence sequence series set shapes spaces squares stack string strings substring suffix "
    "table temperature tokens tree triangles tuples values vector vowels weights words years"
)
_ARGUMENTS = (
    "", "s", "n", "text", "numbers", "items", "a, b", "x, y", "lst", "nums, k", "words", "matrix", "s: str", "n: int",
    "text: str", "numbers: List[int]", "numbers: List[float]", "words: List[str]", "a: int, b: int",
    "items: list, key: str", "s: str, t: str", "values: List[int], limit: int", "grid: List[List[int]]", "d: dict",
)  # fmt: skip
_RETURNS = ("int", "str", "bool", "float", "List[int]", "List[str]")
_IMPORTS = (
    "",
    "",
    "",
    "\n",
    "\n\n",
    "import math\n\n\n",
    "from typing import List\n\n\n",
    "from typing import List\n\n\n",
)

_CODE_OPENINGS = (
    "Write a Python function", "Write a function that", "Write a Python program", "Write a Python script",
    "Write a class", "How do I", "How can I", "Complete this function:\n\ndef", "Fix this code:\n\ndef",
    "What does this code do?\n\n", "Explain this Python code:\n\n", "Implement", "Create a function", "In Python, how",
    "Given a list", "Given a string", "Write code", "Write unit tests", "Add a docstring", "Convert this",
)  # fmt: skip
_OTHER_OPENINGS = (
    "", "", "", "", "What", "How", "Why", "Who", "When", "Where", "Explain", "Write a short", "Write a story",
    "Write an email", "Write a paragraph", "Can you", "Could you", "Tell me", "Summarize", "Give me", "List", "I",
    "Describe", "Is", "Should", "Compare", "What is the difference between", "Translate", "Rewrite", "Help me",
    "Suggest", "Name", "Calculate", "Solve", "My", "The", "Hello", "Hi", "Please", "Make", "Create", "Provide",
)  # fmt: skip


@dataclass(frozen=True)
class UserTurn:
    """A user turn: its initial `text`, whether the target continues it, and what ends it at the latest."""

    kind: str
    text: str
    complete: bool
    until: str = ""


@cache
def signatures() -> tuple[str, ...]:
    """Return functions of the standard library with docstrings and without bodies."""
    found: dict[str, None] = {}
    for file in load_corpus().train:
        for node in ast.walk(ast.parse(file.text)):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            text = ast.get_docstring(node)
            if text and 40 <= len(text) <= LONGEST_DOCSTRING and '"""' not in text:
                found[signature(node, text)] = None
    return tuple(sorted(found))


def signature(node: ast.FunctionDef, text: str) -> str:
    """Return the beginning of a function, up to the end of its docstring `text`."""
    node.args.args = [argument for argument in node.args.args if argument.arg != "self"]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    body = text.replace("\n", "\n    ")
    return f'def {node.name}({ast.unparse(node.args)}){returns}:\n    """{body}\n    """\n'


def invented_signature(chance: random.Random) -> UserTurn:
    """Return an invented function beginning, which the target completes to the end of its docstring."""
    name = "_".join([chance.choice(_VERBS.split()), *chance.sample(_NOUNS.split(), chance.choice((1, 1, 2)))])
    returns = f" -> {chance.choice(_RETURNS)}" if chance.random() < 0.5 else ""
    quotes = chance.choice(('"""', '"""', "'''"))
    opening = chance.choice(("", "", "\n    ", " ", "Return", "Given", "Write a function", "You are given"))
    text = f"{chance.choice(_IMPORTS)}def {name}({chance.choice(_ARGUMENTS)}){returns}:\n    {quotes}{opening}"
    return UserTurn("invented", text, True, quotes)


def user_turn(index: int, seed: int) -> UserTurn:
    """Return the user turn of dialogue `index`; it depends only on the seed (and the standard library)."""
    chance = random.Random(f"{seed}-{index}")
    share = chance.random()
    if share < SIGNATURES:
        text = chance.choice(signatures())
        shape = chance.choice(("{}", "{}", "{}", "Complete this function:\n\n{}", "```python\n{}```"))
        return UserTurn("signature", shape.format(text), False)
    if share < SIGNATURES + CODE:
        if chance.random() < 0.6:
            return invented_signature(chance)
        return UserTurn("code", chance.choice(_CODE_OPENINGS), True)
    return UserTurn("other", chance.choice(_OTHER_OPENINGS), True)


def indices_of(kinds: Collection[str], dialogues: int, seed: int) -> list[int]:
    """Return the first indices whose user turns are of `kinds`, so that a head can be trained for one domain."""
    return list(islice((index for index in count() if user_turn(index, seed).kind in kinds), dialogues))
