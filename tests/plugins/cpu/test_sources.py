"""The library source contains every op that has a kernel, as its spec describes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from peagle.plugins.cpu import sources
from peagle.plugins.cpu.sources import OPTIONS, attributes_of, cpu_ops, digest, units
from peagle.plugins.errors import BuildError
from peagle.plugins.op_spec import Attribute, Operand, OpSpec
from peagle.plugins.ops import OPS
from peagle.plugins.ops.quantized_linear.packed_formats import PACKED_FORMATS

OP = OpSpec(
    name="Anything",
    doc="",
    inputs=(Operand("x", ("N",), ("float32",)), Operand("y", ("N",), ("int64", "int32"), optional=True)),
    outputs=(
        Operand("z", ("N",), ("uint8",)),
        Operand("out", ("N",), ("int64", "int32"), same_as="y", aliases="y"),
    ),
    reference=lambda *_: (),
    body=lambda *_: "",
    attributes=(Attribute("size", float, 1.5), Attribute("count", int, -1), Attribute("kind", str, "a")),
)


def test_every_kernel_is_in_the_text_and_registered() -> None:
    folder = Path(sources.__file__).parent.parent / "ops"
    assert {path.parent.name for path in folder.glob("*/kernel.cpp")} == {op.folder for op in cpu_ops()}
    text = "".join(units().values())
    for op in cpu_ops():
        assert f'#line 1 "ops/{op.folder}/kernel.cpp"' in text
        assert f"make_kernel<{op.name}, {op.name}Attributes>" in text


def test_attributes_have_the_types_and_defaults_of_the_spec() -> None:
    text = attributes_of(OP)
    for line in ("float size;", "std::int64_t count;", "std::string kind;"):
        assert line in text
    for reader in ('number("size", 1.5f)', 'integer("count", -1)', 'text("kind", "a")'):
        assert reader in text


def test_operand_flags_cover_type_optional_and_shared_buffer() -> None:
    text = sources._registration([OP])
    assert '{"Anything", {{1, false, -1, -1}, {0, true, -1, -1}}, {{2, false, -1, -1}, {0, false, 1, 1}}, ' in text


def test_op_is_registered_per_type_set_when_inference_is_ambiguous() -> None:
    """Caches: two of them are given, two come back."""
    text = sources._registration([OPS["CachedAttention"]])
    assert text.count('{"CachedAttention", ') == 3
    for kind in (1, 3, 10):
        start, sinks, ancestors = "{7, false, -1, -1}", "{1, true, -1, 0}", "{9, true, -1, -1}"
        caches = f"{{{kind}, false, -1, -1}}, {{{kind}, false, -1, 3}}"
        assert f"{caches}, {start}, {sinks}, {ancestors}}}" in text
        assert f"{{{{1, false, -1, 0}}, {{{kind}, false, 3, 3}}, {{{kind}, false, 4, 3}}}}" in text


@pytest.mark.parametrize("unit", units())
def test_every_header_is_included_once_in_order(unit: str) -> None:
    text = units()[unit]
    assert '#include "' not in text
    names = re.findall('#line 1 "cpu/(?:binding/)?(\\w+\\.h)"', text)
    assert len(names) == len({*names})
    order = [name for name in names if name in ("interface.h", "tensor.h", "kernel.h", "register.h")]
    assert order == ["interface.h", "tensor.h", "kernel.h", "register.h"][: len(order)]


def test_everything_but_headers_is_in_one_unit() -> None:
    names = [name for text in units().values() for name in re.findall('#line 1 "(.*)"', text) if name[-2:] != ".h"]
    assert len(names) == len({*names})


def test_kernels_have_the_same_records_of_formats() -> None:
    text = sources.text_of_headers("packed_formats.h")
    (table,) = re.findall(r"kFormats\[\] = \{(.*?)\n\};", text, re.DOTALL)
    records = [line.strip(" {},").split(", ") for line in table.splitlines() if line.strip()]
    assert [record[0].strip('"') for record in records] == [*PACKED_FORMATS]
    for (_, bits, middle, values, _, least), form in zip(records, PACKED_FORMATS.values(), strict=True):
        assert (int(bits), least) == (form.bits, str(form.scales.has_min).lower())
        if not form.values:
            assert (int(middle), values) == (form.middle, "nullptr")
            continue
        (listed,) = re.findall(rf"{values[1:]} = \{{(.*)\}};", text)
        assert tuple(map(int, listed.split(", "))) == form.values


def test_the_digest_is_of_text_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    digest.cache_clear()
    before = digest()
    for name, value in (("OPTIONS", (*OPTIONS, "-O1")), ("units", lambda: {"kernels.cpp": "other text"})):
        with monkeypatch.context() as patch:
            patch.setattr(sources, name, value)
            digest.cache_clear()
            assert digest() != before
    digest.cache_clear()
    assert digest() == before


def test_no_option_lets_a_compiler_round_elsewhere_or_look_at_the_machine() -> None:
    assert "-ffp-contract=off" in OPTIONS
    assert not [option for option in OPTIONS if "fast" in option or "native" in option]


def test_a_missing_file_is_a_broken_installation(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="cannot read the source of the CPU kernels") as caught:
        sources._text(tmp_path / "gone.h")
    assert "reinstall" in caught.value.fix
