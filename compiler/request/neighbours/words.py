"""A table of TensorRT-LLM's and vLLM's names: which option of ours means the same, or why none does.

Read from ``llmapi/llm_args.py``, ``commands/build.py`` and ``commands/serve.py`` of TensorRT-LLM, line 1.2 (and 1.3's
release candidates, which renamed ``speculative_model_dir``), and from vLLM's ``config/speculative.py`` and
``engine/arg_utils.py`` of 2026. ``docs/from-tensorrt-llm.md`` has it for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ....engines.draft_methods import methods_in_vllm, ngram
from ....engines.serving.speculative_words import FITS_ONE, NO_COUNTERPARTS, NO_SUCH_RUNTIME, ONE_GPU, NoCounterpart
from ....plugins.number_formats import FP8, INT8, NUMBER_FORMATS


@dataclass(frozen=True)
class Word:
    """What becomes of the ``keys``, options of a neighbour's by their paths.

    ``option`` is ours that means the same. ``spelled`` is what a value of theirs, in lower case, is here: None asks for
    nothing, and ``UNREAD`` is left out. Another value goes through ``turned``, which also returns what it left out, or
    is taken as it is; with ``only`` it is refused. Where there is no option it is left out. What is left out is told,
    with ``why``; what is refused, with ``fix`` as well. Of ``several`` texts ``--set`` may give one at a time.
    """

    keys: str
    option: str = ""
    spelled: Mapping[str, Any] = field(default_factory=dict)
    turned: Callable[[Any], tuple[Any, list[str]]] | None = None
    only: bool = False
    several: bool = False
    why: str = ""
    fix: str = ""


UNREAD: Final = object()
ANY_HEAD: Final = object()  # of ``draft``: a head, whichever was named or the model brings
GROUPS = ("kv_cache_config", "quant_config", "calib_config", "speculative_config")
BUILD_CONFIG = "build_config"  # whose keys are also those of a file for `trtllm-build --build_config`
_UNITS = {"k": 1000, "K": 1 << 10, "m": 1000_000, "M": 1 << 20}
_ALWAYS_WIDE = ("lm_head", "embed_tokens", "gate", "router", "norm")


def _inputs_of_layers(value: Any) -> tuple[Any, list[str]]:
    """Taps of the layers whose output is captured there: here a tap is the layer that reads it."""
    captured = [*value] if isinstance(value, list | tuple) else str(value).split(",")
    try:
        return [str(int(layer) + 1) for layer in captured], []
    except (TypeError, ValueError):
        return value, []


def _number(value: Any) -> tuple[Any, list[str]]:
    """A number as vLLM's options are written: 16k is 16,000 and 16K 16,384."""
    unit = _UNITS.get(value[-1:]) if isinstance(value, str) else None
    return (int(value[:-1]) * unit, []) if unit and value[:-1].isdecimal() and len(value) < 10 else (value, [])


def _rounded_modules(value: Any) -> tuple[Any, list[str]]:
    """Patterns without those of what a recipe leaves wide by itself."""
    patterns = [value] if isinstance(value, str) else value
    if not isinstance(patterns, list | tuple) or not all(isinstance(pattern, str) for pattern in patterns):
        return value, []
    left = [pattern for pattern in patterns if pattern.rstrip("*.").rpartition(".")[2].lstrip("*") in _ALWAYS_WIDE]
    return [pattern for pattern in patterns if pattern not in left] or None, left


def _of_speculation(entry: NoCounterpart) -> Word:
    """What is said of speculation and read neither by a build nor by the engine that it makes."""
    keys = " ".join(f"speculative_config.{key}" for key in entry.keys.split())
    return Word(keys, spelled=_nothing(*entry.same), only=bool(entry.fix), why=entry.why, fix=entry.fix)


class DraftSpellings(Mapping[str, Any]):
    """What the names of draft methods mean to ``--draft``; read from the table of methods whenever one is looked up."""

    def __getitem__(self, name: str) -> Any:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    @staticmethod
    def _all() -> dict[str, Any]:
        vllm = {name: ANY_HEAD if each.needs_head else each.name for name, each in methods_in_vllm().items()}
        return {**vllm, "auto": ngram.METHOD.name, "none": None}  # as TensorRT-LLM has them


def _nothing(*texts: str) -> dict[str, None]:
    return dict.fromkeys(texts)


_WHOLE = "caches are allocated whole when an engine is loaded, max_batch_size rows of max_seq_len tokens"
_PASSES = "the columns of a pass follow from max_batch_size, K and the prompts that wait"
_SERVING = "that is said to `serve`, or in a request"
_OTHER_DRAFTS = "drafts come from a P-EAGLE or EAGLE-3 head, or are looked up in the text"
_DRAFTS_FIX = "name a head, or say ngram or none"
_SAME: Mapping[str, str | None] = {each.name: each.name for each in NUMBER_FORMATS.values() if each.elsewhere}
_PLAN = "TensorRT's own choice of kernels and plugins has no such switch here"
_MODELS = "the model is what its config.json says"

TABLE: tuple[Word, ...] = (
    # ------------------------------------------------------------------------------------------ sizes
    Word("max_num_seqs", "max_batch_size"),
    Word("max_decoder_seq_len", "max_seq_len"),
    Word("max_model_len", "max_seq_len", {"auto": UNREAD, "-1": UNREAD}, turned=_number,
         why="--max-seq-len is 2048 unless told"),
    Word("max_input_len", why="a prompt may be as long as max_seq_len leaves room for"),
    Word("max_num_tokens opt_num_tokens opt_batch_size max_num_batched_tokens", why=_PASSES),
    Word("max_beam_width", spelled=_nothing("1"), only=True, why="there is no beam search", fix="leave it out, or 1"),
    # ------------------------------------------------------------------------------------------ several GPUs
    Word(
        "tensor_parallel_size pipeline_parallel_size context_parallel_size data_parallel_size "
        "decode_context_parallel_size moe_tensor_parallel_size moe_expert_parallel_size moe_cluster_parallel_size "
        "tp_size pp_size ep_size cp_size",
        spelled=_nothing("1", "-1"),
        only=True,
        why=ONE_GPU,
        fix=FITS_ONE,
    ),
    Word("enable_attention_dp enable_expert_parallel", spelled=_nothing("false"), only=True, why=ONE_GPU, fix=FITS_ONE),
    Word("gpus_per_node workers allreduce_strategy embedding_parallel_mode auto_parallel", why=ONE_GPU),
    # ------------------------------------------------------------------------------------------ what is built
    Word("output_dir", "out"),
    Word(
        "checkpoint_dir",
        only=True,
        why="checkpoints of TensorRT-LLM's own format are not read",
        fix="name the Hugging Face checkpoint that it was converted from: model: FOLDER",
    ),
    Word(
        "backend",
        "backend",
        {"pytorch": UNREAD, "_autodeploy": UNREAD, "trt": "tensorrt"},
        why="--backend is what runs an engine here: onnxruntime, tensorrt-rtx or tensorrt",
    ),
    Word("dtype", spelled=_nothing("auto"), why="what is not quantized has the checkpoint's type unless --precision "
         "says fp16, bf16 or fp32"),
    Word("tokenizer tokenizer_revision custom_tokenizer", only=True, why="an engine has its checkpoint's tokenizer",
         fix="leave it out, or put its files into the checkpoint's folder"),
    Word("tokenizer_mode", spelled=_nothing("auto"), why="tokenizer.json is read as the package tokenizers reads it"),
    Word("skip_tokenizer_init", spelled=_nothing("false"), why="requests may always be of token ids"),
    Word("trust_remote_code", spelled=_nothing("false"), why="no code of a checkpoint is run"),
    Word("load_format", spelled=_nothing("auto", "hf", "safetensors"), only=True,
         why="weights are read from safetensors or GGUF", fix="leave it out"),
    Word("checkpoint_format checkpoint_loader download_dir", why="the format of a checkpoint is found by its files"),
    Word("model_kwargs hf_overrides rope_scaling sparse_attention_config", only=True, why=_MODELS,
         fix="leave it out, or change the checkpoint"),
    Word("enable_lora enable_prompt_adapter", spelled=_nothing("false"), only=True, why="there are no adapters",
         fix="merge them into the checkpoint"),
    Word("lora_config peft_cache_config lora_dir", only=True, why="there are no adapters",
         fix="merge them into the checkpoint"),
    Word("strip_plan use_strip_plan weight_streaming weight_sparsity use_refit", spelled=_nothing("false"), only=True,
         why="plans hold all their weights as they are", fix="leave it out"),
    Word("dry_run", spelled=_nothing("false"), only=True, why="a file does not say it", fix="build --dry-run"),
    Word(
        "plugin_config strongly_typed force_num_profiles profiling_verbosity fast_build speculative_decoding_plugin "
        "input_timing_cache output_timing_cache enable_debug_output visualize_network monitor_memory kv_cache_type "
        "gather_context_logits gather_generation_logits logits_dtype workspace enable_build_cache enable_tqdm "
        "use_mrope max_prompt_embedding_table_size max_encoder_input_len max_prompt_adapter_token log_level",
        why=_PLAN,
    ),
    # ------------------------------------------------------------------------------------------ precision
    Word(
        "quant_config.quant_algo",
        "precision",
        {**_SAME, "no_quant": None},
        only=True,
        why=f"the recipes that mean the same are {' and '.join(_SAME).upper()}",
        fix="leave it out for a checkpoint that is quantized, or choose a recipe with --precision",
    ),
    Word(
        "quantization",
        "precision",
        {**_SAME} | dict.fromkeys(("modelopt", "compressed-tensors", "mxfp4", "gguf", "auto"), UNREAD),
        only=True,
        why="how a checkpoint is quantized is read from it",
        fix="leave it out, or choose a recipe with --precision",
    ),
    Word("quant_config.kv_cache_quant_algo", "kv_cache_dtype", {each.name: each.name for each in (FP8, INT8)},
         only=True, why="caches are kept in fp8 (TensorRT) or int8 (ONNX Runtime)", fix="leave it out"),
    Word("kv_cache_config.dtype kv_cache_dtype", "kv_cache_dtype",
         {"auto": None, "fp8_e4m3": FP8.name, "float16": "fp16", "bfloat16": "bf16"}),
    Word("quant_config.exclude_modules", "exclude", turned=_rounded_modules, several=True,
         why="of head, embedding, routers and norms the recipe decides; see --lm-head-precision"),
    Word("quant_config.group_size", why="blocks are of 32"),
    Word("quant_config.smoothquant_val quant_config.clamp_val", spelled=_nothing("0.5"), only=True,
         why="ranges are calibrated with --calib-method max, percentile or mse", fix="leave it out"),
    Word("quant_config.has_zero_point quant_config.pre_quant_scale quant_config.use_meta_recipe",
         spelled=_nothing("false"), only=True, why="codes are symmetric, and inputs are scaled as a whole",
         fix="leave it out"),
    Word("quant_config.mamba_ssm_cache_dtype kv_cache_config.mamba_ssm_cache_dtype", spelled=_nothing("auto"),
         only=True, why="there are no such layers in the families that are read", fix="leave it out"),
    Word("calib_config.calib_batches", "calib_samples"),
    Word("calib_config.calib_batch_size", spelled=_nothing("1"), only=True,
         why="samples are counted one by one", fix="calib_batches times calib_batch_size is --calib-samples"),
    Word("calib_config.calib_max_seq_length", "calib_length"),
    Word("calib_config.calib_dataset", only=True, why="samples are JSON Lines with text, messages or input_ids",
         fix="leave it out for the bundled ones, or calib_data: FILE"),
    Word("calib_config.device calib_config.random_seed calib_config.tokenizer_max_seq_length",
         why="samples are taken in their order, layer by layer"),
    # ------------------------------------------------------------------------------------------ drafts
    Word("speculative_config.max_draft_len speculative_config.num_speculative_tokens max_draft_len",
         "num_speculative_tokens", {"auto": None}),
    Word("speculative_config.max_total_draft_tokens", "num_speculative_tokens"),
    Word("speculative_config.speculative_model speculative_config.speculative_model_dir speculative_config.model "
         "speculative_model speculative_model_dir", "draft", {"[ngram]": ngram.METHOD.name}),
    Word("speculative_config.revision", "draft_revision"),
    Word(
        "speculative_config.decoding_type speculative_config.method speculative_decoding_mode",
        "draft",
        DraftSpellings(),
        only=True,
        why=_OTHER_DRAFTS,
        fix=_DRAFTS_FIX,
    ),
    Word("speculative_config.mask_token_id", "mask_token_id"),
    Word("speculative_config.eagle3_layers_to_capture", "taps", turned=_inputs_of_layers, several=True),
    Word("speculative_config.posterior_threshold speculative_config.acceptance_tolerance", why=_SERVING),
    Word("speculative_config.quantization", only=True, why="a head is read as its files are",
         fix="--draft-precision rounds it"),
    *map(_of_speculation, NO_COUNTERPARTS),
    # ------------------------------------------------------------------------------------------ caches
    Word("kv_cache_config.max_attention_window kv_cache_config.sink_token_length", only=True,
         why="attention windows and sinks are the model's own", fix="leave it out"),
    Word(
        "kv_cache_config.free_gpu_memory_fraction kv_cache_config.max_tokens kv_cache_config.max_gpu_total_bytes "
        "kv_cache_config.host_cache_size kv_cache_config.tokens_per_block kv_cache_config.onboard_blocks "
        "kv_cache_config.cross_kv_cache_fraction kv_cache_config.secondary_offload_min_priority "
        "kv_cache_config.event_buffer_max_size kv_cache_config.use_uvm kv_cache_config.use_kv_cache_manager_v2 "
        "kv_cache_config.max_util_for_resume kv_cache_config.attention_dp_events_gather_period_ms "
        "gpu_memory_utilization kv_cache_memory_bytes block_size swap_space cpu_offload_gb paged_kv_cache "
        "kv_cache_free_gpu_memory_fraction fail_fast_on_attention_window_too_large",
        why=_WHOLE,
    ),
    Word("kv_cache_config.enable_block_reuse kv_cache_config.enable_partial_reuse "
         "kv_cache_config.copy_on_partial_reuse enable_prefix_caching", why="prompts that begin alike are kept by "
         "`serve --prefix-cache-bytes`"),
    # ------------------------------------------------------------------------------------------ while it runs
    Word(
        "enable_chunked_prefill guided_decoding_backend reasoning_parser tool_call_parser enable_auto_tool_choice "
        "chat_template generation_config return_perf_metrics perf_metrics_max_requests print_iter_log stream_interval "
        "enable_iter_perf_stats enable_iter_req_stats num_postprocess_workers postprocess_tokenizer_dir max_logprobs "
        "normalize_log_probs seed served_model_name host port api_key disable_log_stats structured_outputs_config",
        why=_SERVING,
    ),
    Word(
        "cuda_graph_config torch_compile_config compilation_config extended_runtime_perf_knob_config scheduler_config "
        "batching_type moe_config nvfp4_gemm_config attn_backend attention_backend attention_dp_config sampler_type "
        "use_torch_sampler disable_overlap_scheduler async_scheduling enable_autotuner enable_min_latency "
        "enforce_eager garbage_collection_gen0_threshold batch_wait_timeout_ms batch_wait_timeout_iters "
        "batch_wait_max_tokens_ratio "
        "max_stats_len iter_stats_max_iterations request_stats_max_iterations enable_layerwise_nvtx_marker "
        "orchestrator_type env_overrides otlp_traces_endpoint disable_flashinfer_sampling force_dynamic_quantization",
        why=NO_SUCH_RUNTIME,
    ),
    Word("cache_transceiver_config kv_connector_config kv_transfer_config", only=True,
         why="prompts are read where they are answered", fix="leave it out"),
)  # fmt: skip

WORDS: Mapping[str, Word] = {key: word for word in TABLE for key in word.keys.split()}
