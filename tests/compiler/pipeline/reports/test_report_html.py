"""The build report as an HTML page."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.compiler.pipeline.reports.report_html import report_html
from peagle.compiler.precision.product_table import BuiltProduct, product_table
from peagle.engines.folder.records import BackendRecord
from tests.engines.folder.test_manifest import manifest_of

_VOID = ("meta",)
_TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1) | st.sampled_from(["<script>", "</td>&"])


class _Page(HTMLParser):
    """Its text, and its tags as they are opened and closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags, self.open = "", list[str](), list[str]()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def _report(name: str, warning: str, built: list[BuiltProduct]) -> dict[str, Any]:
    return {
        "product_version": "1.0",
        "num_speculative_tokens": 4,
        "phases": [{"phase": "trace", "seconds": 1.25, "peak_rss_bytes": 10**9, "reused": True}],
        "bytes": {"target": 12345},
        "warnings": [warning],
        "plans": {"target": {"seconds": 2.0, "peak_rss_bytes": 10**8}},
        "matmuls": {"target": product_table(None, built)},
        "precision": {"target": {"losses": {name: 0.0123, "small": 0.001}}},
    }


@settings(max_examples=30)
@given(_TEXTS, _TEXTS)
def test_every_text_is_shown_and_none_is_markup(name: str, warning: str) -> None:
    built = [BuiltProduct("y", name, "float8e4m3fn", "float16", 1234, unpacked=True, by="plan")]
    manifest = manifest_of({}, precision={"recipe": name, "kv_cache": "fp16"})
    page = _Page(report_html(_report(name, warning, built), manifest, warning))
    assert page.open == []
    assert name in page.text
    assert page.text.count(warning) >= 3
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "1.230%" in page.text
    assert "1,234" in page.text
    assert "1 fp8 dequantized to fp16 before every matmul (100.0% of the weights)" in page.text


def test_a_build_of_which_little_is_known_has_a_page_too() -> None:
    report = _report("w", "careful", [BuiltProduct("y", "w", "int4", "float16", 8)])
    for name in ("matmuls", "plans", "precision"):
        del report[name]
    page = _Page(report_html(report | {"warnings": []}, manifest_of({}), "demo-engine"))
    assert "demo-engine" in page.text
    for absent in ("Warnings", "Calibration", "Choice of K", "GPUs", "everything else", "excluded"):
        assert absent not in page.text


def test_page_describes_the_engine_and_its_verification() -> None:
    calibration = {
        "method": {"name": "percentile", "percent": 99.99}, "dataset": "bundled", "samples": "e5" * 32,
        "num_samples": 128, "num_tokens": 65536,
    }  # fmt: skip
    rates = [{"k": k, "tokens_per_second": 10.0 * (k + 1), "slowest": 9.0, "fastest": 99.0} for k in range(3)]
    report = _report("w", "careful", []) | {"wide": "bf16", "calibration": calibration, "matmuls": {}}
    manifest = manifest_of(
        {},
        backend=BackendRecord("tensorrt-rtx", "tensorrt", {"tensorrt-rtx": "1.7.1"}, ("sm_89", "sm_120")),
        precision={
            "recipe": "fp8",
            "weights": "fp8",
            "exclude": '["layers.[0, 1].*", "*.down_proj"]',
            "calibration": "bundled",
        },
    )
    whole = _Page(report_html(report | {"choose_k": {"k": 2, "speedup": 3.0, "rates": rates}}, manifest, "engine"))
    assert (whole.tags.count("svg"), whole.tags.count("circle"), whole.open) == (1, 3 * 3, [])
    page = whole.text
    for said in (
        "demo (Qwen3ForCausalLM)", "ab" * 32, "cd" * 32, "tensorrt-rtx 1.7.1, lowered for tensorrt", "sm_89, sm_120",
        "parity", "against torch", "bf16", "layers.[0, 1].*, *.down_proj", "percentile, percent 99.99", "e5" * 32,
        "65,536", "K = 2 decodes 3.00x as fast as plain decoding", "30.0",
    ):  # fmt: skip
        assert said in page, said
    order = ("recipe", "weights", "everything else", "excluded")
    assert sorted(order, key=page.index) == list(order)


def test_page_lists_clipped_ranges_losses_of_lm_heads_and_rarely_used_experts() -> None:
    calibration = {
        "method": {"name": "percentile", "percent": 99.99}, "dataset": "bundled", "samples": "e5" * 32,
        "num_samples": 128, "num_tokens": 65536, "device": "cuda",
        "saturation": {
            "inputs": 400, "clipped": 17, "worst": [{"name": "<b>.down_proj", "share": 0.0123, "beyond": 37.25}],
            "halves": {"inputs": 390, "apart": 3.5, "in": "<b>.up_proj", "unsettled": 2, "limit": 2.0},
        },
        "lm_head": [{"kind": "fp8", "divergence": 0.0503, "changed": 0.124}],
        "experts": {
            "experts": 6144, "unseen": 1, "fewer_than": 64, "seldom": [{"module": "<b>", "expert": 77, "tokens": 0}]
        },
    }  # fmt: skip
    report = _report("w", "careful", []) | {"calibration": calibration, "matmuls": {}}
    page = _Page(report_html(report, manifest_of({}), "engine"))
    assert page.open == []
    for said in (
        "cuda", "in 17 of 400 inputs", "a factor of at most 3.5 (<b>.up_proj)",
        "2 of 390 inputs differ by a factor of more than 2",
        "<b>.down_proj", "1.230%", "37.2", "1 of 6144 experts saw fewer than 64 tokens; 1 of these saw none", "77",
        "0.05", "12.4%",
    ):  # fmt: skip
        assert said in page.text, said
    fewer = {name: value for name, value in calibration.items() if name not in ("saturation", "experts")}
    assert (
        "exceed the calibrated range"
        not in _Page(report_html(report | {"calibration": fewer}, manifest_of({}), "engine")).text
    )
