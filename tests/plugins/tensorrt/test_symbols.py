from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.plugins.op_spec import evaluate_dim
from peagle.plugins.tensorrt.symbols import NAMES, Arithmetic, Symbol


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(st.sampled_from("abc"), min_size=1, max_size=4),
    signs=st.lists(st.sampled_from("+-"), min_size=4, max_size=4),
    constant=st.integers(0, 9),
    sizes=st.sets(st.sampled_from("abc")),
)
def test_symbols_add_and_subtract_as_their_numbers_do(
    names: list[str], signs: list[str], constant: int, sizes: set[str]
) -> None:
    terms = [*names, str(constant)]
    expression = terms[0] + "".join(sign + term for sign, term in zip(signs, terms[1:], strict=False))
    values = {"a": 7, "b": 11, "c": 13}
    numbers = Arithmetic(lambda x: x, lambda x, y: x + y, lambda x, y: x - y)
    for arithmetic, unwrap in ((numbers, int), (NAMES, lambda text: eval(text, {}, dict(values)))):
        mixed = {
            name: value if name in sizes else Symbol(name if arithmetic is NAMES else value, arithmetic)
            for name, value in values.items()
        }
        result = evaluate_dim(expression, mixed)
        assert unwrap(result.value if isinstance(result, Symbol) else str(result)) == evaluate_dim(expression, values)
