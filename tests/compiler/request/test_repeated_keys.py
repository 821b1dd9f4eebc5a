"""Keys that a mapping has twice are found at any depth, in YAML and JSON."""

from __future__ import annotations

import pytest

from peagle.compiler.request.repeated_keys import repeated_key


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: 1\nb: 2\na: 3\n", ("a", 3)),
        ('{"a": 1, "a": 2}', ("a", 1)),
        ("a: 1\n'a': 2\n", ("a", 2)),
        ("sizes:\n  k: 1\n  k: 2\n", ("k", 3)),
        ("list:\n- k: 1\n  k: 2\n", ("k", 3)),
        ("a: {k: 1}\nb: {k: 2}\n", None),
        ("base: &x {k: 1}\nmore: &y {j: 1}\nboth:\n  <<: *x\n  <<: *y\n  k: 2\n", None),
        ("a: &loop [*loop]\n", None),
        ("# nothing\n", None),
        ("text", None),
    ],
)
def test_repeated_key_is_found_with_its_line(text: str, found: tuple[str, int] | None) -> None:
    assert repeated_key(text) == found


def test_aliases_do_not_multiply_the_work() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    assert repeated_key("\n".join(lines)) is None
