"""The store of answers stays within its bounds, and drops the oldest first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.serving.bounded_store import BoundedStore

STEPS = st.lists(st.tuples(st.sampled_from(["put", "delete"]), st.integers(0, 12), st.integers(0, 40)), max_size=40)


@given(most=st.integers(0, 4), max_bytes=st.integers(0, 60), steps=STEPS)
def test_a_store_holds_the_latest_that_fit(most: int, max_bytes: int, steps: list[tuple[str, int, int]]) -> None:
    store, expected = BoundedStore(most, max_bytes), dict[str, bytes]()
    for number, (step, which, size) in enumerate(steps):
        if step == "put":
            identity, content = str(number), b"a" * size
            fits = bool(most) and size <= max_bytes
            assert store.put(identity, content) == fits
            if fits:
                expected[identity] = content
            while len(expected) > most or sum(map(len, expected.values())) > max_bytes:
                del expected[next(iter(expected))]
        else:
            assert store.delete(str(which)) == (expected.pop(str(which), None) is not None)
        assert (len(store), store.bytes) == (len(expected), sum(map(len, expected.values())))
        assert all(store.get(str(each)) == expected.get(str(each)) for each in range(number + 1))
