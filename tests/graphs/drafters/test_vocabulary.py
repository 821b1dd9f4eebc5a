from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.graphs.drafters import DrafterSpec, check_vocabulary
from peagle.plugins.errors import BuildError
from tests.heads import FORMS, Form
from tests.models import VOCAB


@pytest.fixture
def small() -> tuple[DrafterSpec, np.ndarray, np.ndarray]:
    head = Form(draft_vocab=VOCAB - 40).make()
    return head.spec, head.tensors["d2t"].numpy(), head.tensors["t2d"].numpy()


def test_a_vocabulary_in_order_is_accepted(small: tuple[DrafterSpec, np.ndarray, np.ndarray]) -> None:
    head, d2t, t2d = small
    check_vocabulary(head, d2t, t2d)
    check_vocabulary(head, d2t, None)
    check_vocabulary(FORMS["plain"].make().spec, None, None)


def test_every_fault_of_a_vocabulary_is_named_at_once(small: tuple[DrafterSpec, np.ndarray, np.ndarray]) -> None:
    head, d2t, t2d = small
    wrong = d2t.copy()
    wrong[5], wrong[-1] = wrong[4] - 1, 500
    with pytest.raises(BuildError) as caught:
        check_vocabulary(head, wrong, ~t2d)
    for part in (
        "1 draft ids map outside the vocabulary of 96; 55 maps to 555",
        "draft ids 4 and 5",
        "t2d marks 40",
    ):
        assert part in str(caught.value)


def test_target_ids_in_the_place_of_offsets_are_recognized(small: tuple[DrafterSpec, np.ndarray, np.ndarray]) -> None:
    head, d2t, t2d = small
    with pytest.raises(BuildError, match="contains target ids"):
        check_vocabulary(head, d2t + np.arange(len(d2t)), t2d)
    with pytest.raises(BuildError, match="d2t must be integers, not float32"):
        check_vocabulary(head, d2t.astype(np.float32), t2d)
    moved = np.roll(t2d, 1)
    with pytest.raises(BuildError, match="d2t and t2d differ for"):
        check_vocabulary(head, d2t, moved)


@given(data=st.data())
def test_only_the_vocabulary_that_t2d_marks_is_accepted(data: st.DataObject) -> None:
    head = Form(draft_vocab=6).make().spec
    marked = data.draw(st.sets(st.integers(0, VOCAB - 1), min_size=6, max_size=6))
    ids = np.array(data.draw(st.permutations(sorted(marked))))
    t2d = np.isin(np.arange(VOCAB), list(marked))
    if list(ids) == sorted(marked):
        check_vocabulary(head, ids - np.arange(6), t2d)
    else:
        with pytest.raises(BuildError, match="is not ascending"):
            check_vocabulary(head, ids - np.arange(6), t2d)
    check_vocabulary(head, np.sort(ids) - np.arange(6), t2d)
