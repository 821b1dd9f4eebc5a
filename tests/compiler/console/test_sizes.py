"""Sizes are parsed in powers of 1000, unless the unit stands for 1024."""

from __future__ import annotations

import argparse

import pytest

from peagle.compiler.console.sizes import argument, bytes_of, size_option
from peagle.plugins.errors import UsageError


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("12B", 12),
        ("1K", 1000),
        ("1G", 10**9),
        ("50GB", 50 * 10**9),
        ("50 gb", 50 * 10**9),
        ("1.5TB", 1_500_000_000_000),
        ("4MiB", 4 << 20),
        ("1kib", 1024),
    ],
)
def test_a_size_is_a_number_with_or_without_a_unit(text: str, count: int) -> None:
    assert bytes_of("--size", text) == count
    assert size_option("--size")(text) == count
    assert argument("--size")(text) == count


@pytest.mark.parametrize("text", ["", "G", "-1", "1e9", "1,5GB", "5 apples", "1GBs", "9" * 400, "5\u212aB", "٣", " 1"])
def test_invalid_size_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size") as refused:
        bytes_of("--size", text)
    assert "50GB" in refused.value.fix
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        argument("--size")(text)


def test_less_than_the_least_is_refused() -> None:
    assert bytes_of("--size", "1KiB", minimum=1024) == 1024
    with pytest.raises(UsageError, match="--size 1K is too small"):
        bytes_of("--size", "1K", minimum=1024)
