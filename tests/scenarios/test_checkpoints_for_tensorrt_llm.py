"""Checkpoints from `quantize`, checked by the rules with which TensorRT-LLM 1.2 reads them.

TensorRT-LLM itself does not import on a CPU, so its rules are a table here, each read from the file that it names
(of line 1.2). Weights come as it loads them: of a Hugging Face folder, module by module.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from peagle.compiler.checkpoints.weight_files import INDEX, SINGLE
from tests.compiler.pipeline.quantize.test_quantize import quantized
from tests.models import make_pair

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
EXPERT = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}  # its weight mappers' names of an expert's matrices
# The keys that the class of its setting has, which takes no others.
QUANT_CONFIG_FIELDS = {
    "quant_algo", "kv_cache_quant_algo", "group_size", "smoothquant_val", "clamp_val", "use_meta_recipe",
    "has_zero_point", "pre_quant_scale", "exclude_modules", "mamba_ssm_cache_dtype",
}  # fmt: skip


@dataclass(frozen=True)
class Written:
    """A quantized checkpoint: tensors by name as ``(type, shape)``, and what describes it."""

    folder: Path
    tensors: dict[str, tuple[str, tuple[int, ...]]] = field(repr=False)
    scales: dict[str, float] = field(repr=False)
    config: dict[str, Any] = field(repr=False)
    kv_cache: bool

    @property
    def quantization(self) -> dict[str, Any]:
        """The entry of ``hf_quant_config.json`` that is read."""
        content: dict[str, Any] = json.loads((self.folder / "hf_quant_config.json").read_text())["quantization"]
        return content

    def excluded(self, module: str) -> bool:
        """Whether a module is left wide: the name of it, whole, by fnmatch, with what it is fused of."""
        parent, _, last = module.rpartition(".")
        names = [module, *(f"{parent}.{part}" for part in FUSED.get(last, ()))]
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.quantization["exclude_modules"])

    def linears(self) -> Iterator[tuple[str, list[str]]]:
        """Each linear module as it is built there, with the modules of the file that it is loaded from."""
        stored = {name.removesuffix(".weight") for name, (_, shape) in self.tensors.items()
                  if name.endswith(".weight") and len(shape) == 2 and ".experts." not in name}  # fmt: skip
        stored -= {name for name in stored if name.endswith("embed_tokens")}
        for fused, parts in FUSED.items():
            for first in sorted(name for name in stored if name.endswith(f".{parts[0]}")):
                parent = first.rpartition(".")[0]
                sources = [f"{parent}.{part}" for part in parts]
                yield f"{parent}.{fused}", sources
                stored -= set(sources)
        yield from ((name, [name]) for name in sorted(stored))

    def moes(self) -> Iterator[tuple[str, list[str]]]:
        """Each layer's experts as the one module that they are there, with the modules of the file."""
        below: dict[str, list[str]] = {}
        for name in self.tensors:
            before, experts, after = name.partition(".experts.")
            if experts and after.endswith(".weight"):
                below.setdefault(f"{before}.experts", []).append(name.removesuffix(".weight"))
        yield from below.items()


Check = Callable[[Written], None]


def only_known_settings(written: Written) -> None:
    assert set(written.quantization) <= QUANT_CONFIG_FIELDS


def algorithm(written: Written) -> None:
    assert written.quantization["quant_algo"] == "FP8"


def cache_algorithm(written: Written) -> None:
    assert written.quantization["kv_cache_quant_algo"] == ("FP8" if written.kv_cache else None)


def inline_settings(written: Written) -> None:
    inline = written.config["quantization_config"]
    assert inline["quant_method"] == "modelopt"
    assert (inline["quant_algo"], inline["ignore"]) == ("FP8", written.quantization["exclude_modules"])
    scheme = inline.get("kv_cache_scheme")
    assert (scheme and (scheme["type"], scheme["num_bits"])) == (("float", 8) if written.kv_cache else None)


def patterns(written: Written) -> None:
    for pattern in written.quantization["exclude_modules"]:
        assert isinstance(pattern, str)
        assert not pattern.startswith("re:")
        assert any(fnmatchcase(name.removesuffix(".weight"), pattern) for name in [*written.tensors, "lm_head"])


def fp8_or_excluded(written: Written) -> None:
    for module, sources in [*written.linears(), *written.moes()]:
        kinds = {written.tensors[f"{source}.weight"][0] for source in sources}
        assert (kinds == {"F8_E4M3"}) == (not written.excluded(module)), module


def one_type_where_fused(written: Written) -> None:
    for module, sources in [*written.linears(), *written.moes()]:
        assert len({written.tensors[f"{source}.weight"][0] for source in sources}) == 1, module


def scales_of_linears(written: Written) -> None:
    for module, sources in written.linears():
        for source in sources:
            for scale in ("weight_scale", "input_scale"):
                found = written.tensors.get(f"{source}.{scale}")
                assert found == (None if written.excluded(module) else ("F32", ())), (source, scale)


def requantized_where_fused(written: Written) -> None:
    for module, sources in written.linears():
        if not written.excluded(module):
            largest = max(written.scales[f"{source}.weight_scale"] for source in sources)
            assert np.isfinite(largest)
            assert all(written.scales[f"{source}.weight_scale"] >= largest * 2**-9 for source in sources), module


def expert_names(written: Written) -> None:
    count = written.config.get("num_experts", written.config.get("num_local_experts", 0))
    for module, sources in written.moes():
        assert sorted(sources) == sorted(f"{module}.{e}.{name}" for e in range(count) for name in EXPERT.values())


def expert_scales(written: Written) -> None:
    for module, sources in (each for each in written.moes() if not written.excluded(each[0])):
        for source in sources:
            for scale in ("weight_scale", "input_scale"):
                assert written.tensors[f"{source}.{scale}"] == ("F32", ()), source
        for gate in (source for source in sources if source.endswith("gate_proj")):
            up = gate.replace("gate_proj", "up_proj")
            assert written.scales[f"{gate}.weight_scale"] == written.scales[f"{up}.weight_scale"], module


def positive_scales(written: Written) -> None:
    assert written.scales
    assert all(0 < value < float("inf") for value in written.scales.values())


def cache_scales(written: Written) -> None:
    for layer in range(written.config["num_hidden_layers"]):
        attention = f"model.layers.{layer}.self_attn"
        for name in ("k_proj.k_scale", "v_proj.v_scale"):
            assert written.tensors.get(f"{attention}.{name}") == (("F32", ()) if written.kv_cache else None)


def weight_files(written: Written) -> None:
    files = {path.name for path in written.folder.glob("*.safetensors")}
    index = written.folder / INDEX
    assert files == ({*json.loads(index.read_text())["weight_map"].values()} if index.exists() else {SINGLE})
    assert not any("consolidated" in file for file in files)


# What is read, how it is spelled there and what it demands, with the file of TensorRT-LLM that does so.
RULES: dict[str, tuple[str, Check]] = {
    "settings": ("hf_quant_config.json: quantization has the keys of QuantConfig and no others; each is set by name "
     "(llmapi/llm_utils.py)", only_known_settings),
    "algorithm": ("quant_algo is there and a QuantAlgo: FP8 is one scale a matrix and one for what enters it "
     "(llmapi/llm_utils.py, quantization/mode.py)", algorithm),
    "cache algorithm": ("kv_cache_quant_algo is null or FP8 (llmapi/llm_utils.py)", cache_algorithm),
    "inline": ("config.json: quantization_config is not read beside hf_quant_config.json; releases after 1.2 warn if "
     "the two differ in quant_algo, in ignore, or in kv_cache_scheme, which is FP8 as a float of 8 bits "
     "(_torch/model_config.py, quantization/modelopt_config.py)", inline_settings),
    "patterns": ("exclude_modules are fnmatch patterns of whole names, case and all; a parent's name does not name "
     "what is below it, and no regular expressions (models/modeling_utils.py)", patterns),
    "exclusion": ("a module is FP8 unless it is excluded, or what it is fused of is: qkv_proj by q_proj, gate_up_proj "
     "by gate_proj; experts are asked for as one module (_torch/models/modeling_utils.py)", fp8_or_excluded),
    "fused": ("q, k and v are one matrix, so are gate and up, and the experts of a layer: of one type each "
     "(_torch/modules/linear.py)", one_type_where_fused),
    "scales": ("of FP8 linears: weight [out, in] in float8_e4m3, weight_scale and input_scale of one float32 each, "
     "beside it; without input_scale inputs would be scaled at run time (_torch/modules/linear.py)", scales_of_linears),
    "requantized": ("a fused matrix takes the largest weight_scale of its parts, and their codes are rounded anew: "
     "parts of far smaller scales would be lost (_torch/modules/linear.py)", requantized_where_fused),
    "experts": ("an expert is N.w1, N.w2 and N.w3, which weight mappers make of N.gate_proj, N.down_proj and "
     "N.up_proj; all of them are there (_torch/modules/fused_moe/quantization.py)", expert_names),
    "expert scales": ("weight_scale and input_scale beside each; w1 and w3 take the larger weight_scale, so that equal "
     "ones lose nothing; the layer takes the largest input_scale (_torch/modules/fused_moe/quantization.py)",
     expert_scales),
    "positive": ("scales are divided by (_torch/modules/linear.py: inv_input_scale)", positive_scales),
    "cache scales": ("k_proj.k_scale and v_proj.v_scale of one float32 each, read if TRTLLM_LOAD_KV_SCALES=1 "
     "(_torch/modules/linear.py)", cache_scales),
    "files": ("every *.safetensors of the folder is read but those called consolidated, whatever an index says "
     "(_torch/models/checkpoints/hf/weight_loader.py)", weight_files),
}  # fmt: skip


def read(folder: Path, *, kv_cache: bool) -> Written:
    """A checkpoint as the package safetensors reads it."""
    tensors, scales = {}, {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                piece = file.get_slice(name)
                tensors[name] = (piece.get_dtype(), tuple(piece.get_shape()))
                if name.endswith("_scale"):
                    scales[name] = float(file.get_tensor(name))
    return Written(folder, tensors, scales, json.loads((folder / "config.json").read_text()), kv_cache)


@pytest.fixture(scope="module")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A tiny checkpoint of a family, quantized with ranges that no two inputs share."""
    family, kv_cache, exclude = request.param
    return made(tmp_path_factory.mktemp(family), family, exclude, kv_cache=kv_cache)


def made(folder: Path, family: str, exclude: tuple[str, ...], *, kv_cache: bool) -> Written:
    out = quantized(
        make_pair(folder, family).target, folder / "out", exclude=exclude, kv_cache_dtype="fp8" if kv_cache else None
    )
    return read(out, kv_cache=kv_cache)


CHECKPOINTS = [
    pytest.param(("qwen3", True, ()), id="dense"),
    pytest.param(("llama", False, ("layers.1.*", "*.down_proj", "layers.3.self_attn.*")), id="dense-in-part"),
    pytest.param(("qwen3-moe", True, ()), id="experts"),
    pytest.param(("qwen3-moe", False, ("layers.1.*", "layers.2.mlp.experts.*")), id="experts-in-part"),
]


@pytest.mark.parametrize("written", CHECKPOINTS, indirect=True)
@pytest.mark.parametrize("rule", RULES)
def test_rule_is_kept(written: Written, rule: str) -> None:
    RULES[rule][1](written)


def damaged(written: Written, name: str) -> Written:
    """The same with something wrong that the rule ``name`` is about."""
    tensors, scales = dict(written.tensors), dict(written.scales)
    layer, folder = "model.layers.0", written.folder
    expert = f"{layer}.mlp.experts.1"
    if name == "scales":
        del tensors[f"{layer}.self_attn.o_proj.input_scale"]
    elif name == "requantized":
        scales[f"{layer}.self_attn.k_proj.weight_scale"] = 1e-9
    elif name == "experts":
        tensors[f"{expert}.w1.weight"] = tensors.pop(f"{expert}.gate_proj.weight")
    elif name == "expert scales":
        scales[f"{expert}.up_proj.weight_scale"] *= 2
    elif name == "positive":
        scales[f"{expert}.down_proj.input_scale"] = 0.0
    elif name == "cache scales":
        tensors[f"{layer}.self_attn.k_proj.k_scale"] = ("F32", (1,))
    elif name == "files":
        (folder / "consolidated.safetensors").touch()
    elif name in ("exclusion", "fused"):
        tensors[f"{layer}.self_attn.v_proj.weight"] = ("F32", (1, 1))
    else:
        described = json.loads((folder / "hf_quant_config.json").read_text())
        described["quantization"] |= {
            "settings": {"activation_scheme": "static"}, "algorithm": {"quant_algo": "fp8"},
            "cache algorithm": {"kv_cache_quant_algo": "fp8"}, "inline": {"exclude_modules": []},
            "patterns": {"exclude_modules": ["re:.*lm_head"]},
        }[name]  # fmt: skip
        (folder / "hf_quant_config.json").write_text(json.dumps(described))
    return replace(written, tensors=tensors, scales=scales)


@pytest.mark.parametrize("rule", RULES)
def test_broken_rule_is_detected(rule: str, whole: Path, tmp_path: Path) -> None:
    copy = read(Path(shutil.copytree(whole, tmp_path / "copy")), kv_cache=True)
    check = RULES[rule][1]
    check(copy)
    with pytest.raises((AssertionError, KeyError)):
        check(damaged(copy, rule))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("whole"), "qwen3-moe", (), kv_cache=True).folder
