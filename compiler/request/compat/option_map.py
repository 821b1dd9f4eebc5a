"""A table of the option names of TensorRT-LLM and vLLM, with the equivalent option here or the reason for none.

Taken from ``llmapi/llm_args.py``, ``commands/build.py`` and ``commands/serve.py`` of TensorRT-LLM, line 1.2 (and 1.3's
release candidates, which renamed ``speculative_model_dir``), and from vLLM's ``config/speculative.py`` and
``engine/arg_utils.py`` of 2026. ``docs/from-tensorrt-llm.md`` documents it for users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ....engines.draft_methods import methods_in_vllm, ngram
from ....engines.serving.speculative_option_map import (
    FITS_ONE,
    NO_COUNTERPARTS,
    NO_SUCH_RUNTIME,
    ONE_GPU,
    NoCounterpart,
)
from ....plugins.number_formats import FP8, INT8, NUMBER_FORMATS, wide_formats


@dataclass(frozen=True)
class OptionMapping:
    """The mapping of ``keys``, option paths of TensorRT-LLM or vLLM.

    ``option`` is the equivalent here; without one, values are ignored. ``values`` maps their values, in lower case, to
    values here: None sets nothing, and ``UNREAD`` is ignored. Other values are converted by ``convert``, which also
    returns what it ignored, or used as they are; with ``only`` they are rejected. ``why`` is printed with ignored
    values, ``why`` and ``fix`` with rejected ones. If ``several``, ``--set`` may give one element at a time.
    """

    keys: str
    option: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    convert: Callable[[Any], tuple[Any, list[str]]] | None = None
    only: bool = False
    several: bool = False
    why: str = ""
    fix: str = ""


UNREAD: Final = object()
ANY_HEAD: Final = object()  # of ``draft``: the named head or the one known for the model
GROUPS = ("kv_cache_config", "quant_config", "calib_config", "speculative_config")
BUILD_CONFIG = "build_config"  # whose keys are also those of a file for `trtllm-build --build_config`
_UNITS = {"k": 1000, "K": 1 << 10, "m": 1000_000, "M": 1 << 20}
_ALWAYS_WIDE = ("lm_head", "embed_tokens", "gate", "router", "norm")


def _inputs_of_layers(value: Any) -> tuple[Any, list[str]]:
    """Convert ids of layers whose output is captured to taps, which are the ids of the layers that read it."""
    captured = [*value] if isinstance(value, list | tuple) else str(value).split(",")
    try:
        return [str(int(layer) + 1) for layer in captured], []
    except (TypeError, ValueError):
        return value, []


def _number(value: Any) -> tuple[Any, list[str]]:
    """Parse a number in vLLM's notation: 16k is 16,000 and 16K is 16,384."""
    unit = _UNITS.get(value[-1:]) if isinstance(value, str) else None
    return (int(value[:-1]) * unit, []) if unit and value[:-1].isdecimal() and len(value) < 10 else (value, [])


def _rounded_modules(value: Any) -> tuple[Any, list[str]]:
    """Drop the patterns of modules that a recipe never quantizes."""
    patterns = [value] if isinstance(value, str) else value
    if not isinstance(patterns, list | tuple) or not all(isinstance(pattern, str) for pattern in patterns):
        return value, []
    left = [pattern for pattern in patterns if pattern.rstrip("*.").rpartition(".")[2].lstrip("*") in _ALWAYS_WIDE]
    return [pattern for pattern in patterns if pattern not in left] or None, left


def _of_speculation(entry: NoCounterpart) -> OptionMapping:
    """Return the mapping of a speculation option that neither a build nor an engine reads."""
    keys = " ".join(f"speculative_config.{key}" for key in entry.keys.split())
    return OptionMapping(keys, values=_nothing(*entry.same), only=bool(entry.fix), why=entry.why, fix=entry.fix)


class DraftMethodNames(Mapping[str, Any]):
    """A mapping of draft method names to values of ``--draft``, computed from the table of methods on each access."""

    def __getitem__(self, name: str) -> Any:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    @staticmethod
    def _all() -> dict[str, Any]:
        vllm = {name: ANY_HEAD if each.needs_head else each.name for name, each in methods_in_vllm().items()}
        return {**vllm, "auto": ngram.METHOD.name, "none": None}  # of TensorRT-LLM


def _nothing(*texts: str) -> dict[str, None]:
    return dict.fromkeys(texts)


_WHOLE = "caches are allocated in full when an engine is loaded: max_batch_size rows of max_seq_len tokens"
_PASSES = "max_batch_size, K and the waiting prompts determine the number of tokens in a pass"
_SERVING = "an option of `serve` or of a request"
_OTHER_DRAFTS = "the draft methods are P-EAGLE and EAGLE-3 heads and n-gram lookup"
_DRAFTS_FIX = "pass a head, ngram or none"
_SAME: Mapping[str, str | None] = {each.name: each.name for each in NUMBER_FORMATS.values() if each.elsewhere}
_PLAN = "TensorRT's choice of kernels and plugins is not configurable here"
_MODELS = "the model is defined by its config.json"

TABLE: tuple[OptionMapping, ...] = (
    # ------------------------------------------------------------------------------------------ sizes
    OptionMapping("max_num_seqs", "max_batch_size"),
    OptionMapping("max_decoder_seq_len", "max_seq_len"),
    OptionMapping("max_model_len", "max_seq_len", {"auto": UNREAD, "-1": UNREAD}, convert=_number,
                  why="the default of --max-seq-len is used"),
    OptionMapping("max_input_len", why="max_seq_len limits prompt plus output"),
    OptionMapping("max_num_tokens opt_num_tokens opt_batch_size max_num_batched_tokens", why=_PASSES),
    OptionMapping("max_beam_width", values=_nothing("1"), only=True, why="beam search is not supported",
                  fix="omit the option, or use 1"),
    # ------------------------------------------------------------------------------------------ several GPUs
    OptionMapping(
        "tensor_parallel_size pipeline_parallel_size context_parallel_size data_parallel_size "
        "decode_context_parallel_size moe_tensor_parallel_size moe_expert_parallel_size moe_cluster_parallel_size "
        "tp_size pp_size ep_size cp_size",
        values=_nothing("1", "-1"),
        only=True,
        why=ONE_GPU,
        fix=FITS_ONE,
    ),
    OptionMapping("enable_attention_dp enable_expert_parallel", values=_nothing("false"), only=True, why=ONE_GPU,
                  fix=FITS_ONE),
    OptionMapping("gpus_per_node workers allreduce_strategy embedding_parallel_mode auto_parallel", why=ONE_GPU),
    # ------------------------------------------------------------------------------------------ what is built
    OptionMapping("output_dir", "out"),
    OptionMapping(
        "checkpoint_dir",
        only=True,
        why="checkpoints in TensorRT-LLM's own format are not supported",
        fix="use the Hugging Face checkpoint that it was converted from: model: FOLDER",
    ),
    OptionMapping(
        "backend",
        "backend",
        {"pytorch": UNREAD, "_autodeploy": UNREAD, "trt": "tensorrt"},
        why="--backend is the runtime of the engine: onnxruntime, tensorrt-rtx or tensorrt",
    ),
    OptionMapping("dtype", values=_nothing("auto"),
                  why="unquantized weights keep the checkpoint's type unless --precision is "
                      "fp16, bf16 or fp32"),
    OptionMapping("tokenizer tokenizer_revision custom_tokenizer", only=True,
                  why="an engine uses its checkpoint's tokenizer",
                  fix="omit the option, or put the tokenizer's files into the checkpoint folder"),
    OptionMapping("tokenizer_mode", values=_nothing("auto"), why="tokenizer.json is read by the tokenizers package"),
    OptionMapping("skip_tokenizer_init", values=_nothing("false"), why="requests can always contain token ids"),
    OptionMapping("trust_remote_code", values=_nothing("false"), why="code in checkpoints is never run"),
    OptionMapping("load_format", values=_nothing("auto", "hf", "safetensors"), only=True,
                  why="weights are read from safetensors or GGUF", fix="omit the option"),
    OptionMapping("checkpoint_format checkpoint_loader download_dir",
                  why="checkpoint formats are detected from the files"),
    OptionMapping("model_kwargs hf_overrides rope_scaling sparse_attention_config", only=True, why=_MODELS,
                  fix="omit the option, or change the checkpoint"),
    OptionMapping("enable_lora enable_prompt_adapter", values=_nothing("false"), only=True,
                  why="adapters are not supported", fix="merge the adapters into the checkpoint"),
    OptionMapping("lora_config peft_cache_config lora_dir", only=True, why="adapters are not supported",
                  fix="merge them into the checkpoint"),
    OptionMapping("strip_plan use_strip_plan weight_streaming weight_sparsity use_refit", values=_nothing("false"),
                  only=True, why="plans always contain all weights", fix="omit the option"),
    OptionMapping("dry_run", values=_nothing("false"), only=True, why="this option is only a command-line flag",
                  fix="use `peagle-compile build --dry-run`"),
    OptionMapping(
        "plugin_config strongly_typed force_num_profiles profiling_verbosity fast_build speculative_decoding_plugin "
        "input_timing_cache output_timing_cache enable_debug_output visualize_network monitor_memory kv_cache_type "
        "gather_context_logits gather_generation_logits logits_dtype workspace enable_build_cache enable_tqdm "
        "use_mrope max_prompt_embedding_table_size max_encoder_input_len max_prompt_adapter_token log_level",
        why=_PLAN,
    ),
    # ------------------------------------------------------------------------------------------ precision
    OptionMapping(
        "quant_config.quant_algo",
        "precision",
        {**_SAME, "no_quant": None},
        only=True,
        why=f"the equivalent precisions are {' and '.join(_SAME).upper()}",
        fix="omit the option for a quantized checkpoint, or choose a recipe with --precision",
    ),
    OptionMapping(
        "quantization",
        "precision",
        {**_SAME} | dict.fromkeys(("modelopt", "compressed-tensors", "mxfp4", "gguf", "auto"), UNREAD),
        only=True,
        why="the quantization of a checkpoint is detected",
        fix="omit the option, or choose a recipe with --precision",
    ),
    OptionMapping("quant_config.kv_cache_quant_algo", "kv_cache_dtype", {each.name: each.name for each in (FP8, INT8)},
                  only=True, why="quantized caches are fp8 (TensorRT) or int8 (ONNX Runtime)", fix="omit the option"),
    OptionMapping("kv_cache_config.dtype kv_cache_dtype", "kv_cache_dtype",
                  {"auto": None, "fp8_e4m3": FP8.name, **{each.number: each.name for each in wide_formats()}}),
    OptionMapping("quant_config.exclude_modules", "exclude", convert=_rounded_modules, several=True,
                  why="the recipe sets the types of head, embedding, routers and norms; see --lm-head-precision"),
    OptionMapping("quant_config.group_size", why="the precision and the backend determine the block size"),
    OptionMapping("quant_config.smoothquant_val quant_config.clamp_val", values=_nothing("0.5"), only=True,
                  why="ranges are calibrated with --calib-method max, percentile or mse", fix="omit the option"),
    OptionMapping("quant_config.has_zero_point quant_config.pre_quant_scale quant_config.use_meta_recipe",
                  values=_nothing("false"), only=True, why="the precision determines the scales and the zero points",
                  fix="omit the option"),
    OptionMapping("quant_config.mamba_ssm_cache_dtype kv_cache_config.mamba_ssm_cache_dtype", values=_nothing("auto"),
                  only=True, why="the supported model families have no such layers", fix="omit the option"),
    OptionMapping("calib_config.calib_batches", "calib_samples"),
    OptionMapping("calib_config.calib_batch_size", values=_nothing("1"), only=True,
                  why="samples are counted individually",
                  fix="use --calib-samples with calib_batches times calib_batch_size"),
    OptionMapping("calib_config.calib_max_seq_length", "calib_length"),
    OptionMapping("calib_config.calib_dataset", only=True,
                  why="samples are JSON Lines with text, messages or input_ids",
                  fix="omit the option to use the bundled samples, or use calib_data: FILE"),
    OptionMapping("calib_config.device", "calib_device"),
    OptionMapping("calib_config.random_seed calib_config.tokenizer_max_seq_length",
                  why="samples are used in file order, layer by layer"),
    # ------------------------------------------------------------------------------------------ drafts
    OptionMapping("speculative_config.max_draft_len speculative_config.num_speculative_tokens max_draft_len",
                  "num_speculative_tokens", {"auto": None}),
    OptionMapping("speculative_config.max_total_draft_tokens", "num_speculative_tokens"),
    OptionMapping("speculative_config.speculative_model speculative_config.speculative_model_dir "
                  "speculative_config.model speculative_model speculative_model_dir", "draft",
                  {"[ngram]": ngram.METHOD.name}),
    OptionMapping("speculative_config.revision", "draft_revision"),
    OptionMapping(
        "speculative_config.decoding_type speculative_config.method speculative_decoding_mode",
        "draft",
        DraftMethodNames(),
        only=True,
        why=_OTHER_DRAFTS,
        fix=_DRAFTS_FIX,
    ),
    OptionMapping("speculative_config.mask_token_id", "mask_token_id"),
    OptionMapping("speculative_config.eagle3_layers_to_capture", "taps", convert=_inputs_of_layers, several=True),
    OptionMapping("speculative_config.posterior_threshold speculative_config.acceptance_tolerance", why=_SERVING),
    OptionMapping("speculative_config.quantization", only=True, why="the format of a head is detected",
                  fix="use --draft-precision to quantize the head"),
    *map(_of_speculation, NO_COUNTERPARTS),
    # ------------------------------------------------------------------------------------------ caches
    OptionMapping("kv_cache_config.max_attention_window kv_cache_config.sink_token_length", only=True,
                  why="attention windows and sinks are defined by the model", fix="omit the option"),
    OptionMapping(
        "kv_cache_config.free_gpu_memory_fraction kv_cache_config.max_tokens kv_cache_config.max_gpu_total_bytes "
        "kv_cache_config.host_cache_size kv_cache_config.tokens_per_block kv_cache_config.onboard_blocks "
        "kv_cache_config.cross_kv_cache_fraction kv_cache_config.secondary_offload_min_priority "
        "kv_cache_config.event_buffer_max_size kv_cache_config.use_uvm kv_cache_config.use_kv_cache_manager_v2 "
        "kv_cache_config.max_util_for_resume kv_cache_config.attention_dp_events_gather_period_ms "
        "gpu_memory_utilization kv_cache_memory_bytes block_size swap_space cpu_offload_gb paged_kv_cache "
        "kv_cache_free_gpu_memory_fraction fail_fast_on_attention_window_too_large",
        why=_WHOLE,
    ),
    OptionMapping("kv_cache_config.enable_block_reuse kv_cache_config.enable_partial_reuse "
                  "kv_cache_config.copy_on_partial_reuse enable_prefix_caching",
                  why="`serve --prefix-cache-bytes` sets the memory of the prefix cache, and 0 disables it"),
    # ------------------------------------------------------------------------------------------ while it runs
    OptionMapping(
        "enable_chunked_prefill guided_decoding_backend reasoning_parser tool_call_parser enable_auto_tool_choice "
        "chat_template generation_config return_perf_metrics perf_metrics_max_requests print_iter_log stream_interval "
        "enable_iter_perf_stats enable_iter_req_stats num_postprocess_workers postprocess_tokenizer_dir max_logprobs "
        "normalize_log_probs seed served_model_name host port api_key disable_log_stats structured_outputs_config",
        why=_SERVING,
    ),
    OptionMapping(
        "cuda_graph_config torch_compile_config compilation_config extended_runtime_perf_knob_config scheduler_config "
        "batching_type moe_config nvfp4_gemm_config attn_backend attention_backend attention_dp_config sampler_type "
        "use_torch_sampler disable_overlap_scheduler async_scheduling enable_autotuner enable_min_latency "
        "enforce_eager garbage_collection_gen0_threshold batch_wait_timeout_ms batch_wait_timeout_iters "
        "batch_wait_max_tokens_ratio "
        "max_stats_len iter_stats_max_iterations request_stats_max_iterations enable_layerwise_nvtx_marker "
        "orchestrator_type env_overrides otlp_traces_endpoint disable_flashinfer_sampling force_dynamic_quantization",
        why=NO_SUCH_RUNTIME,
    ),
    OptionMapping("cache_transceiver_config kv_connector_config kv_transfer_config", only=True,
                  why="prefill and decoding run in the same engine", fix="omit the option"),
)  # fmt: skip

OPTION_MAP: Mapping[str, OptionMapping] = {key: word for word in TABLE for key in word.keys.split()}
