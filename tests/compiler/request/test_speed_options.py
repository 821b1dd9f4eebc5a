"""--acceptance-length: by number of drafts or for the trained depth; other values raise typed errors."""

from __future__ import annotations

import pytest

from peagle.compiler.request.speed_options import SpeedOptions
from peagle.compiler.request.verb_options import BUILD, EXPORT
from peagle.plugins.errors import UsageError


def test_lengths_by_number_of_drafts_and_for_the_trained_depth() -> None:
    assert SpeedOptions(("8:4.1", "4:3.2")).lengths(18) == {4: 3.2, 8: 4.1}
    assert SpeedOptions(("3.2",)).lengths(8) == {8: 3.2}
    assert SpeedOptions().lengths(8) == {}
    assert BUILD.request(model="demo", acceptance_length="4:3.2,8:4.1").speed.lengths(8) == {4: 3.2, 8: 4.1}
    assert EXPORT.request(model="demo", acceptance_length=["2.5"]).speed.lengths(4) == {4: 2.5}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("x", "'x' is not a number of tokens"),
        ("4:nan", "'nan' is not a number of tokens"),
        ("4:inf", "'inf' is not a number of tokens"),
        ("4:", "'' is not a number of tokens"),
        ("0:1", "'0' is not a number of drafts from 1 to 63"),
        ("-4:2", "'-4' is not a number of drafts"),
        ("99:2", "'99' is not a number of drafts"),
        ("4:3.2,4:3.3", "4 drafts have two acceptance lengths"),
        ("3.2,4:3.3", "'3.2' does not state its number of drafts"),
        ("4:5.1", "4 drafts cannot yield 5.1 tokens per round: the range is 1 to 5"),
        ("4:0.5", "4 drafts cannot yield 0.5 tokens per round: the range is 1 to 5"),
        ("4:3.2,8:3.1", "8 drafts cannot yield 3.1 tokens per round: the range is 3.2 to 7.2 if 4 drafts yield 3.2"),
    ],
)
def test_an_impossible_length_is_rejected_with_the_reason(given: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        SpeedOptions(tuple(given.split(","))).check()
    assert why in caught.value.why
    assert "--acceptance-length 4:3.2,8:4.1" in caught.value.fix
