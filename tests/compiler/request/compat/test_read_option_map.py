"""A file with TensorRT-LLM's or vLLM's option names gives the same request as our options, or a message per option."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.request.compat import (
    final,
    map_options,
    merge_values,
    read_foreign_settings,
    read_speculative_config,
)
from peagle.compiler.request.compat.option_map import GROUPS, OPTION_MAP
from peagle.compiler.request.request import CompileRequest
from peagle.compiler.request.verb_options import BUILD, EXPORT, QUANTIZE, VerbOptions
from peagle.plugins.errors import UsageError
from tests.compiler.request.compat.test_option_map import PAGE

TENSORRT_LLM = """
model: demo
backend: pytorch
max_batch_size: 8
max_seq_len: 4096
max_num_tokens: 8192
tensor_parallel_size: 1
enable_chunked_prefill: true
cuda_graph_config:
  enable_padding: true
kv_cache_config:
  dtype: fp8
  free_gpu_memory_fraction: 0.85
  enable_block_reuse: true
quant_config:
  quant_algo: FP8
  exclude_modules: [lm_head, "*.mlp.gate", "model.layers.0.*"]
calib_config:
  calib_batches: 64
speculative_config:
  decoding_type: Eagle3
  max_draft_len: 4
  speculative_model: some/head
"""

VLLM = """
model: demo
max-model-len: 4096
tensor-parallel-size: 1
gpu-memory-utilization: 0.9
kv-cache-dtype: fp8_e4m3
quantization: fp8
max-num-seqs: 8
speculative-config: '{"method": "eagle3", "model": "some/head", "num_speculative_tokens": 4}'
"""


def request(content: Mapping[str, Any], form: VerbOptions = BUILD) -> CompileRequest:
    """Return the request of a file with this content."""
    return form.request(**final(map_options(form, content, "a file").values))


def left_out(content: Mapping[str, Any], form: VerbOptions = BUILD) -> str:
    """Return the messages about it."""
    return "\n".join(map_options(form, content, "a file").left_out)


# ------------------------------------------------------------------------------------------- whole files


def test_tensorrt_llm_file_gives_the_same_request() -> None:
    content = yaml.safe_load(TENSORRT_LLM)
    ours = BUILD.request(
        model="demo", max_batch_size=8, max_seq_len=4096, kv_cache_dtype="fp8", precision="fp8",
        exclude=["model.layers.0.*"], calib_samples=64, num_speculative_tokens=4, draft="some/head",
    )  # fmt: skip
    assert request(content) == request(json.loads(json.dumps(content))) == ours
    told = left_out(content)
    for name in ("backend", "max_num_tokens", "cuda_graph_config", "free_gpu_memory_fraction", "enable_block_reuse",
                 "enable_chunked_prefill", "lm_head, *.mlp.gate of quant_config.exclude_modules"):  # fmt: skip
        assert name in told, name
    for name in ("tensor_parallel_size", "decoding_type", "layers.0"):
        assert name not in told, name


def test_vllm_file_gives_the_same_request() -> None:
    content = yaml.safe_load(VLLM)
    assert request(content) == BUILD.request(
        model="demo", max_seq_len=4096, kv_cache_dtype="fp8", precision="fp8", max_batch_size=8, draft="some/head",
        num_speculative_tokens=4,
    )  # fmt: skip
    assert "gpu_memory_utilization" in left_out(content)


def test_build_config_is_accepted_standalone_or_nested() -> None:
    inner = {"max_batch_size": 4, "max_seq_len": 64, "max_draft_len": 2, "plugin_config": {"gemm_plugin": "auto"}}
    assert request({"model": "demo", **inner}) == request({"model": "demo", "build_config": inner})
    assert "build_config.plugin_config" in left_out({"build_config": inner})
    assert "plugin_config.gemm_plugin" in left_out({"plugin_config.gemm_plugin": "auto"})


def test_names_of_all_three_go_together() -> None:
    mixed = {"model": "demo", "sizes": {"max_seq_len": 64}, "max_num_seqs": 2, "quant_config": {"quant_algo": "FP8"}}
    assert request(mixed) == BUILD.request(model="demo", max_seq_len=64, max_batch_size=2, precision="fp8")
    grouped = {"model": "demo", "backend": {"name": "tensorrt", "gpus": ["b200"]}}
    assert request(grouped) == BUILD.request(model="demo", backend="tensorrt", gpus=["b200"])


def test_documented_yaml_and_json_give_the_same_request() -> None:
    page = PAGE.read_text()
    file = yaml.safe_load(page.partition("<<'END'\n")[2].partition("END\n")[0])
    text = page.partition("--speculative-config '{")[2].partition("}'")[0]
    said = read_speculative_config(BUILD, f"{{{text}}}", {"model": "demo", "max_seq_len": 512})
    ours = BUILD.request(model="demo", max_seq_len=512, num_speculative_tokens=4)
    assert request(file) == BUILD.request(**final(said.values)) == ours
    told = page.partition("note: --config")[2].partition("```")[0]
    assert left_out(file).splitlines() == [
        line.partition("llm-api.yaml: ")[2].join(("a file: ", "")) for line in told.strip().splitlines()
    ]


# ------------------------------------------------------------------------------------------- single names


@pytest.mark.parametrize(
    ("content", "ours"),
    [
        ({"backend": "trt"}, {"backend": "tensorrt"}),
        ({"backend": "onnxruntime"}, {"backend": "onnxruntime"}),
        ({"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "int8"}),
        ({"max_model_len": "4k"}, {"max_seq_len": 4000}),
        ({"max-model-len": "4K"}, {"max_seq_len": 4096}),
        ({"kv_cache_config": {"dtype": "auto"}}, {}),
        ({"kv_cache_config": None, "speculative_config": {}}, {}),
        ({"max_beam_width": 1, "enable_lora": False, "dtype": "auto", "moe_expert_parallel_size": -1}, {}),
        ({"quantization": "mxfp8"}, {"precision": "mxfp8"}),
        ({"quant_config": {"exclude_modules": ["lm_head"]}}, {}),
        ({"output_dir": "engine"}, {"out": "engine"}),
        ({"speculative_config": {"decoding_type": "NGram", "max_draft_len": 3}},
         {"draft": "ngram", "num_speculative_tokens": 3}),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": "auto"}}, {"draft": "ngram"}),
        ({"speculative_config": {"speculative_model_dir": "h", "max_draft_len": 3, "max_total_draft_tokens": 3}},
         {"draft": "h", "num_speculative_tokens": 3}),
        ({"speculative_config": {"eagle3_layers_to_capture": [1, 17, 31]}}, {"taps": ["2", "18", "32"]}),
        ({"speculative_config": {"method": "eagle3"}}, {}),
        ({"speculative_config": {"method": "eagle3"}, "draft": "my/head"}, {"draft": "my/head"}),
    ],
)  # fmt: skip
def test_a_value_is_translated(content: dict[str, Any], ours: dict[str, Any]) -> None:
    assert request({"model": "demo", **content}) == BUILD.request(model="demo", **ours)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size 2 is not supported"),
        ({"max_beam_width": 4}, "max_beam_width 4"),
        ({"kv_cache_config": {"max_attention_window": [128]}}, "max_attention_window"),
        ({"quant_config": {"quant_algo": "NVFP4"}}, "quant_config.quant_algo 'NVFP4'"),
        ({"speculative_config": {"decoding_type": "Medusa"}}, "decoding_type 'Medusa'"),
        ({"speculative_config": {"decoding_type": ["Eagle"]}}, "decoding_type"),
        ({"speculative_config": {"max_draft_len": "many"}}, "max_draft_len 'many' is not an integer"),
        ({"speculative_config": {"max_draft_length": 3}}, "unknown option 'speculative_config.max_draft_length'"),
        ({"speculative_config": "eagle"}, "speculative_config is not valid JSON"),
        ({"speculative_config": '{"method": "ngram", "method": "ngram"}'}, "the key 'method' appears twice"),
        ({"speculative_config": [1]}, "unknown option 'speculative_config'"),
        ({"build_config": {"quant_config": {}}}, "unknown option 'build_config.quant_config'"),
        ({"build_config": {"max_sequence": 3}}, "no option 'max_sequence'"),
        ({"checkpoint_dir": "ckpt"}, "checkpoint_dir 'ckpt'"),
        ({"max_batchsize": 3}, "no option 'max_batchsize'"),
        ({"max_model_len": "4.5k"}, "max_model_len '4.5k' is not an integer"),
        ({3: 3}, "no option '3'"),
        ({"max_model_len": {"a": 1}}, "max_model_len {'a': 1} is not an integer"),
        ({"quant_config": {"exclude_modules": 5}}, "quant_config.exclude_modules 5 is not a list"),
        ({"quant_config": {"has_zero_point": True}}, "the precision determines the scales and the zero points"),
    ],
)  # fmt: skip
def test_unsupported_option_is_rejected_by_name(content: dict[Any, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        map_options(BUILD, content, "a file")
    assert says in str(caught.value)
    assert caught.value.fix


def test_a_wrong_name_in_a_group_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        map_options(BUILD, {"kv_cache_config": {"dtyp": "fp8"}}, "a file")
    assert "kv_cache_config.dtype" in caught.value.fix


@pytest.mark.parametrize("form", [QUANTIZE, EXPORT])
def test_option_missing_from_the_verb_is_named_in_both_vocabularies(form: VerbOptions) -> None:
    with pytest.raises(
        UsageError, match=f"max_num_seqs corresponds to max_batch_size, which is not an option of {form.verb}"
    ):
        map_options(form, {"max_num_seqs": 8}, "a file")


def test_quantize_accepts_the_names_of_its_options() -> None:
    theirs = {"model": "demo", "quant_config": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
              "calib_config": {"calib_batches": 16, "calib_max_seq_length": 64, "device": "cuda"}}  # fmt: skip
    ours = QUANTIZE.request(
        model="demo", precision="fp8", kv_cache_dtype="fp8", calib_samples=16, calib_length=64, calib_device="cuda"
    )
    assert request(theirs, QUANTIZE) == ours


# ------------------------------------------------------------------------------------------- contradictions


@pytest.mark.parametrize(
    "content",
    [
        {"num_speculative_tokens": 4, "speculative_config": {"max_draft_len": 5}},
        {"speculative_config": {"max_draft_len": 4, "max_total_draft_tokens": 9}},
        {"sizes": {"max_seq_len": 64}, "max_model_len": 65},
        {"max_seq_len": 64, "build_config": {"max_seq_len": 65}},
        {"draft": "none", "speculative_config": {"method": "eagle3"}},
        {"speculative_config": {"method": "ngram", "model": "some/head"}},
        {"kv_cache_dtype": "int8", "kv_cache_config": {"dtype": "fp8"}},
        {"precision": "int8", "quantization": "fp8"},
    ],
)
def test_conflicting_aliases_are_rejected(content: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot be combined"):
        map_options(BUILD, content, "a file")


def test_both_names_are_in_the_refusal() -> None:
    with pytest.raises(UsageError) as caught:
        map_options(BUILD, {"num_speculative_tokens": 4, "speculative_config": {"max_draft_len": 5}}, "a file")
    assert "num_speculative_tokens 4 and speculative_config.max_draft_len 5" in caught.value.what


def test_agreeing_aliases_are_accepted() -> None:
    twice = {"model": "demo", "num_speculative_tokens": "4", "speculative_config": {"max_draft_len": 4}}
    assert request(twice) == BUILD.request(model="demo", num_speculative_tokens=4)


# ------------------------------------------------------------------------------------------- other places


def test_settings_are_read_as_the_file_is() -> None:
    said = read_foreign_settings(
        BUILD,
        [("kv_cache_config.dtype", "fp8"), ("speculative-config.max_draft_len", "3"), ("tensor_parallel_size", "1"),
         ("quant_config.exclude_modules", "a.*"), ("quant_config.exclude_modules", "b.*"),
         ("speculative_config", '{"decoding_type": "NGram"}')],
        {},
    )  # fmt: skip
    assert BUILD.request(model="demo", **final(said.values)) == BUILD.request(
        model="demo", kv_cache_dtype="fp8", num_speculative_tokens=3, exclude=["a.*", "b.*"], draft="ngram"
    )
    with pytest.raises(UsageError, match="neither YAML nor JSON"):
        read_foreign_settings(BUILD, [("quant_config.exclude_modules", "[a")], {})
    with pytest.raises(UsageError, match="--set speculative_config sets 'max_draft_len' twice"):
        read_foreign_settings(BUILD, [("speculative_config", "{max_draft_len: 3, max_draft_len: 4}")], {})
    with pytest.raises(UsageError, match="cannot be combined"):
        read_foreign_settings(BUILD, [("max_model_len", "3")], {"max_seq_len": "4"})


def test_vllm_json_combines_with_flags() -> None:
    text = '{"method": "eagle3", "model": "some/head", "num_speculative_tokens": 5, "parallel_drafting": true}'
    said = read_speculative_config(BUILD, text, {"model": "demo", "num_speculative_tokens": 5})
    assert said.values == {"model": "demo", "num_speculative_tokens": 5, "draft": "some/head"}
    assert "parallel_drafting" in said.left_out[0]
    with pytest.raises(UsageError, match="--num-speculative-tokens 4"):
        read_speculative_config(BUILD, text, {"num_speculative_tokens": 4})
    for wrong in ("{", "[3]", "3", "[" * 100_000):
        with pytest.raises(UsageError, match=r"--speculative-config is not (valid JSON|a JSON object)"):
            read_speculative_config(BUILD, wrong, {})


@pytest.mark.parametrize("spec", ['{"num_trees": 2, "tree_depth": 4}', "true", '"4x2"', "[[0], [0, 0], [1]]"])
def test_parallel_draft_trees_are_recognized_in_any_form(spec: str) -> None:
    text = f'{{"method": "eagle3", "num_speculative_tokens": 4, "parallel_drafting_spec": {spec}}}'
    said = read_speculative_config(BUILD, text, {"model": "demo"})
    assert said.values["num_speculative_tokens"] == 4
    (told,) = said.left_out
    assert "parallel_drafting_spec" in told
    assert "the engine chooses the shape and depth of the draft tree in each round" in told


@pytest.mark.parametrize(("named", "drafts"), [("my/head", "my/head"), ("ngram", None), (None, None)])
def test_declared_draft_method_overrides_a_file_without_one(named: str | None, drafts: str | None) -> None:
    said = read_speculative_config(BUILD, '{"method": "eagle3"}', {})
    assert final(merge_values(said.values, {"draft": named}))["draft"] == drafts


# ------------------------------------------------------------------------------------------- any file

_SIZE = st.integers(1, 99)
_NAME = st.text("abc/.-", min_size=1, max_size=6).filter(lambda text: text not in ("ngram", "none"))
_PATTERNS = st.lists(st.sampled_from(["layers.0.*", "*.down_proj", "model.layers.1.*"]), min_size=1, max_size=3)
# The foreign name, its value, and the name and value of our option.
_ROWS: list[tuple[str, st.SearchStrategy[Any], str, Any]] = [
    ("max_num_seqs", _SIZE, "max_batch_size", lambda value: value),
    ("max_model_len", _SIZE, "max_seq_len", lambda value: value),
    ("output_dir", _NAME, "out", lambda value: value),
    ("kv_cache_config.dtype", st.sampled_from(["fp8", "auto", "int8"]), "kv_cache_dtype",
     lambda value: None if value == "auto" else value),
    ("quant_config.quant_algo", st.sampled_from(["FP8", "MXFP8", "NO_QUANT"]), "precision",
     lambda value: None if value == "NO_QUANT" else value.lower()),
    ("quant_config.exclude_modules", _PATTERNS, "exclude", lambda value: value),
    ("calib_config.calib_batches", _SIZE, "calib_samples", lambda value: value),
    ("calib_config.calib_max_seq_length", _SIZE, "calib_length", lambda value: value),
    ("speculative_config.max_draft_len", _SIZE, "num_speculative_tokens", lambda value: value),
    ("speculative_config.num_speculative_tokens", _SIZE, "num_speculative_tokens", lambda value: value),
    ("speculative_config.speculative_model", _NAME, "draft", lambda value: value),
    ("speculative_config.model", _NAME, "draft", lambda value: value),
    ("speculative_config.revision", _NAME, "draft_revision", lambda value: value),
    ("speculative_config.mask_token_id", _SIZE, "mask_token_id", lambda value: value),
    ("speculative_config.eagle3_layers_to_capture", st.lists(_SIZE, min_size=1, max_size=3), "taps",
     lambda value: [str(layer + 1) for layer in value]),
]  # fmt: skip


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of mappings that paths describe."""
    content: dict[str, Any] = {}
    for path, value in flat.items():
        group, dot, name = path.rpartition(".")
        (content.setdefault(group, {}) if dot else content)[name] = value
    return content


@st.composite
def files(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Some of their names, and the same in ours."""
    theirs: dict[str, Any] = {"model": "demo"}
    ours: dict[str, Any] = {"model": "demo"}
    for path, values, option, turned in draw(st.lists(st.sampled_from(_ROWS), unique_by=lambda row: row[2])):
        theirs[path] = draw(values)
        ours[option] = turned(theirs[path])
    return theirs, ours


@given(files(), st.booleans())
def test_any_foreign_file_gives_the_equivalent_request(
    file: tuple[dict[str, Any], dict[str, Any]], dashed: bool
) -> None:
    theirs, ours = file
    spelled = {key.replace("_", "-"): value for key, value in theirs.items()} if dashed else theirs
    expected = BUILD.request(**ours)
    assert request(nested(spelled)) == expected
    assert request(json.loads(json.dumps(nested(spelled)))) == expected
    assert request(yaml.safe_load(yaml.safe_dump(nested(spelled)))) == expected
    assert request({**nested(spelled), **{k: v for k, v in ours.items() if v is not None}}) == expected


@given(st.sampled_from([row for row in _ROWS if row[1] is _SIZE]), _SIZE, _SIZE)
def test_native_and_foreign_names_that_disagree_are_rejected(
    row: tuple[str, st.SearchStrategy[Any], str, Any], said: int, more: int
) -> None:
    path, _, option, _ = row
    with pytest.raises(UsageError, match="cannot be combined") as caught:
        request({"model": "demo", **nested({path: said}), option: said + more})
    assert path in caught.value.what
    assert option in caught.value.what


_LOOSE = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.sampled_from(["fp8", "auto", "x", ""]),
    lambda each: (
        st.lists(each, max_size=2) | st.dictionaries(st.sampled_from(["dtype", "model", "x"]), each, max_size=2)
    ),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from([*OPTION_MAP, *GROUPS, "build_config", "x", "max_seq_len"]), _LOOSE, max_size=3))
def test_any_input_is_mapped_reported_or_rejected(content: dict[str, Any]) -> None:
    try:
        said = map_options(BUILD, content, "a file")
    except UsageError:
        return
    told = "\n".join(said.left_out)
    for path, value in content.items():
        word = OPTION_MAP.get(path)
        if word is not None and not word.option and value not in (None, "", [], {}):
            assert path in told or str(value).lower() in word.values
