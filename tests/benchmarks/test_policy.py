"""The benchmark of adaptive K: no method has an advantage by its place among the others."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from policy import orders


@pytest.mark.parametrize("count", range(2, 9))
def test_every_method_has_every_place_and_every_predecessor_equally_often(count: int) -> None:
    found = orders(count)
    places = Counter(place for order in found for place in enumerate(order))
    predecessors = Counter(pair for order in found for pair in pairwise(order))
    assert all(sorted(order) == [*range(count)] for order in found)
    assert set(places.values()) == {len(found) // count}
    assert len(predecessors) == count * (count - 1)
    assert set(predecessors.values()) == {len(found) // count}
