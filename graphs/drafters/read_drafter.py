"""Read a drafter: sizes from the tensors, behaviour from the config, with all contradictions reported at once."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...plugins.errors import BuildError
from ...plugins.problems import Problems
from ..config_values import flag, number, positive
from ..targets.family import CacheSpec, TargetSpec, check_taps, default_taps
from .drafter_config import (
    MASK_ID_KEYS,
    Config,
    declares_parallel_drafting,
    flatten,
    read_rope,
    read_windows,
    unknown_architectures,
)
from .drafter_spec import DrafterSpec, Strategy, drafter_problems, trained_head
from .tap_ids import TAPS, are_ids
from .tensor_layout import (
    EMBEDDING,
    FC,
    LM_HEAD,
    MASK_HIDDEN,
    Parts,
    Shape,
    check_tensors,
    has_medusa_heads,
    infer_sizes,
    module_names,
)

_STATED = ("hidden_size", "intermediate_size", "vocab_size", "draft_vocab_size", "head_dim")
_LEFT_TO_TARGET = {
    EMBEDDING: "a head may omit this tensor only for a target of the same hidden size and vocabulary",
    LM_HEAD: "a head may omit this tensor only for a target of the same hidden size and vocabulary, and without d2t",
}
_USUAL_TAPS = 3  # heads with as many taps may omit the layer ids


def read_drafter(config: Config, shapes: Mapping[str, Shape], target: TargetSpec) -> DrafterSpec:
    """Read the drafter in ``config`` with tensors of ``shapes``. Raises ``BuildError`` listing all mismatches."""
    problems = drafter_problems()
    flat = flatten(config, problems)
    keys = module_names(shapes, problems)
    tensors = {name: tuple(shapes[key]) for name, key in keys.items()}
    if MASK_HIDDEN in tensors:
        tensors[MASK_HIDDEN] = (1, 1, math.prod(tensors[MASK_HIDDEN]))
    if LM_HEAD not in tensors and EMBEDDING in tensors and flat.get("tie_word_embeddings") is True:
        keys[LM_HEAD], tensors[LM_HEAD] = keys[EMBEDDING], tensors[EMBEDDING]
    parts = Parts.of(tensors)
    reasons = _refuse_other_kinds(flat, parts, tensors, problems)
    parallel = parts.mask_hidden or declares_parallel_drafting(flat)
    strategy: Strategy = "parallel" if parallel else "autoregressive"
    problems.fix = trained_head(strategy)
    sizes = infer_sizes(parts, tensors)
    _compare_with_config(flat, parts, sizes, problems)
    shared = _shared(flat, parts, sizes, tensors, target)
    reasons |= _LEFT_TO_TARGET | dict.fromkeys(shared, "")
    if EMBEDDING in shared and LM_HEAD not in tensors and flat.get("tie_word_embeddings") is True:
        reasons[LM_HEAD] = "the config ties this tensor to the head's embedding, which is missing too"
    heads = _heads(flat, sizes, problems)
    taps = _taps(flat, parts.fc_norms, sizes, target, problems)
    sizes.setdefault("vocab_size", target.vocab_size)
    sizes.setdefault("draft_vocab_size", sizes["vocab_size"])
    if sizes["vocab_size"] != target.vocab_size:
        problems.add(
            f"the head's vocabulary has {sizes['vocab_size']} tokens, but the target's has {target.vocab_size} tokens"
        )
    if sizes["draft_vocab_size"] != sizes["vocab_size"] and not parts.draft_vocabulary:
        problems.add(
            f"a draft vocabulary of {sizes['draft_vocab_size']} of {sizes['vocab_size']} tokens needs a d2t tensor"
        )
    mask_id = _mask_id(flat, parallel, sizes["vocab_size"], problems)
    check_tensors(parts, sizes, tensors, reasons, problems)
    windows, rope = read_windows(flat, parts.num_layers, problems), read_rope(flat, problems)
    eps, depth = _eps(flat, problems), flat["trained_depth"]
    normed, output = (flag(flat, name, problems) for name in ("norm_before_residual", "norm_output"))
    problems.raise_any()
    num_heads, cache = heads
    return DrafterSpec(
        hidden_size=sizes["hidden_size"],
        target_hidden_size=sizes["target_hidden_size"],
        intermediate_size=sizes["intermediate_size"],
        num_heads=num_heads,
        cache=cache,
        vocab_size=sizes["vocab_size"],
        draft_vocab_size=sizes["draft_vocab_size"],
        mask_token_id=mask_id,
        rms_norm_eps=eps,
        norm_before_residual=bool(normed),
        norm_output=bool(output),
        taps=taps,
        windows=windows,
        trained_depth=depth,
        rope=rope,
        parts=parts,
        strategy=strategy,
        shared=shared,
        keys=keys,
    )


def _refuse_other_kinds(flat: Config, parts: Parts, tensors: Mapping[str, Shape], problems: Problems) -> dict[str, str]:
    """Report heads of other kinds as such. Returns reasons for tensors that such a head lacks.

    A head with ``mask_hidden`` is P-EAGLE, regardless of its config.
    """
    reasons: dict[str, str] = {}
    unknown = unknown_architectures(flat["architectures"])
    if unknown and not parts.mask_hidden:
        problems.add(
            f"architecture {unknown} is not known as an EAGLE-3 or P-EAGLE head, and the tensor mask_hidden, which "
            "would identify a P-EAGLE head, is missing"
        )
    if (positive(flat, "parallel_draft_step", problems) or 1) > 1 or has_medusa_heads(tensors):
        problems.add(
            "Model-Optimizer heads with parallel_draft_step > 1 are not supported: their parallel_draft_heads are "
            "Medusa heads after autoregressive steps, not P-EAGLE"
        )
    if declares_parallel_drafting(flat) and not parts.mask_hidden:
        problems.add(
            "the tensor mask_hidden is missing, although the config enables parallel drafting: only P-EAGLE heads "
            "with this learned tensor are supported, not heads that use the mean of the target's features"
        )
    if flag(flat, "use_aux_hidden_state", problems) is False:
        problems.add(
            "the config sets use_aux_hidden_state false: the head reads the target's last hidden state instead of "
            "taps, which the target's graph does not provide"
        )
        reasons[FC] = ""
    if flat.get("hidden_act") not in (None, "silu", "swish"):
        problems.add(f"hidden_act {flat['hidden_act']!r} is not supported: a head's layers use silu")
    return reasons


def _shared(
    flat: Config, parts: Parts, sizes: Mapping[str, int], tensors: Mapping[str, Shape], target: TargetSpec
) -> tuple[str, ...]:
    """Return the tensors that a head takes from a target of the same width: embedding, and LM head with all its ids.

    A head tied to its embedding has no separate LM head to omit.
    """
    vocab = target.vocab_size
    if sizes.get("hidden_size") != target.hidden_size or sizes.get("vocab_size", vocab) != vocab:
        return ()
    is_full_vocabulary = not parts.draft_vocabulary and sizes.get("draft_vocab_size", vocab) == vocab
    may = [EMBEDDING, LM_HEAD] if is_full_vocabulary and flat.get("tie_word_embeddings") is not True else [EMBEDDING]
    return tuple(name for name in may if name not in tensors)


def _compare_with_config(flat: Config, parts: Parts, sizes: dict[str, int], problems: Problems) -> None:
    """Report every contradiction between config and tensors; sizes that only the config states are taken from it."""
    for name in _STATED:
        declared = positive(flat, name, problems)
        if declared is not None and sizes.setdefault(name, declared) != declared:
            problems.add(f"the config has {name} {declared}, but the tensors have {sizes[name]}")
    layers = positive(flat, "num_hidden_layers", problems)
    if layers is not None and layers != parts.num_layers:
        problems.add(f"the config has num_hidden_layers {layers}, but the tensors have {parts.num_layers}")
    attention = {name for name in parts.biases if name.startswith("self_attn.")}
    for name, present, tensors in (
        ("attention_bias", bool(attention), "bias of an attention projection"),
        ("mlp_bias", len(attention) < len(parts.biases), "bias of an MLP projection"),
        ("norm_before_fc", parts.input_norm, "tensor input_norm.weight"),
        ("fc_norm", parts.fc_norms > 0, "tensor fc_norm.0.weight"),
    ):
        stated_flag = flag(flat, name, problems)
        if stated_flag is not None and stated_flag != present:
            problems.add(
                f"the config sets {name} {str(stated_flag).lower()}, but there is {'a' if present else 'no'} {tensors}"
            )
    if parts.input_norm and parts.fc_norms:
        problems.add(
            "tensors input_norm.weight and fc_norm.0.weight cannot both be present: features are normalized once"
        )
    if flat.get("model_type") == "qwen3" and not parts.qk_norm:
        problems.add(
            "the config has model_type qwen3, whose layers have q_norm and k_norm, but these tensors are missing"
        )


def _heads(flat: Config, sizes: dict[str, int], problems: Problems) -> tuple[int, CacheSpec]:
    """Return the query heads and the cache of a layer, from the rows of q_proj and k_proj."""
    queries, keys = sizes.get("queries"), sizes.get("keys")
    declared, declared_kv = (positive(flat, n, problems) for n in ("num_attention_heads", "num_key_value_heads"))
    nothing = 1, CacheSpec(1, 1)
    if queries is None or keys is None:
        return nothing
    if "head_dim" not in sizes and declared and queries % declared == 0:
        sizes["head_dim"] = queries // declared
    dim = sizes.get("head_dim")
    if dim is None:
        problems.add(
            f"head_dim is unknown: the config does not state it, and its num_attention_heads ({declared or 'absent'}) "
            f"does not divide the {queries} rows of q_proj"
        )
        return nothing
    for name, rows, projection in ((declared, queries, "q_proj"), (declared_kv, keys, "k_proj")):
        if rows % dim or (name and rows != name * dim):
            problems.add(
                f"the config has {name} heads of head_dim {dim}, but {projection} has {rows} rows"
                if name
                else f"{projection} has {rows} rows, which is not a multiple of head_dim {dim}"
            )
    num, kv = max(queries // dim, 1), max(keys // dim, 1)
    if num % kv:
        problems.add(f"{num} query heads cannot share {kv} key heads evenly")
    if dim % 2:
        problems.add(f"head_dim is {dim}, but rotary embedding needs an even number")
    return num, CacheSpec(kv, dim)


def _taps(flat: Config, norms: int, sizes: dict[str, int], target: TargetSpec, problems: Problems) -> tuple[int, ...]:
    """Return the taps, as many as ``fc`` reads: the layers in the config or, if there are three, the usual ones."""
    declared = positive(flat, "target_hidden_size", problems)
    width = declared or sizes.get("target_hidden_size") or target.hidden_size
    if declared is not None and sizes.get("target_hidden_size", declared) != declared:
        problems.add(
            f"the config has target_hidden_size {declared}, but the tensors have {sizes['target_hidden_size']}"
        )
    sizes["target_hidden_size"] = width
    if width != target.hidden_size:
        problems.add(f"the head was made for a target of hidden size {width}, but this target has {target.hidden_size}")
    ids, features = flat[TAPS], sizes.get("features")
    if ids is not None and not are_ids(ids):
        problems.add(f"config entry {TAPS} must be a list of layer ids, not {ids!r}")
        ids = None
    elif ids is None and features == _USUAL_TAPS * width:
        ids = _usual_taps(target.num_layers, problems)
    elif ids is None and features is not None and features % width == 0:
        problems.add(f"{FC} reads {features // width} taps, but the config does not list their layers ({TAPS})")
    if features is not None and features % width:
        problems.add(f"{FC} reads {features} features, which is not a multiple of the hidden size {width}")
    elif features is not None and ids is not None and len(ids) * width != features:
        problems.add(
            f"the config lists {len(ids)} taps {ids}, but {FC} reads {features // width} ({features} / {width})"
        )
    if norms and features is not None and norms * width != features:
        problems.add(f"there are {norms} fc_norm tensors, one per tap, but {FC} reads {features // width} taps")
    if ids is None:
        return ()
    try:
        return check_taps(ids, target.num_layers)
    except BuildError as error:
        problems.add(f"{error.what}: {error.why}")
        if max(ids) == target.num_layers:
            problems.fix = error.fix  # the head may be the one that was trained for this target
        return ()


def _usual_taps(num_layers: int, problems: Problems) -> list[int] | None:
    try:
        return list(default_taps(num_layers))
    except BuildError as error:
        problems.add(f"{error.what}, and the config lists none ({TAPS}): {error.why}")
        return None


def _mask_id(flat: Config, parallel: bool, vocab: int, problems: Problems) -> int:
    mask_id: int | None = flat["mask_token_id"]
    if mask_id is None:
        if parallel:
            problems.add(f"the config has no mask token id ({', '.join(MASK_ID_KEYS)})")
        return -1
    if not 0 <= mask_id < vocab:
        problems.add(f"mask token id {mask_id} is outside the vocabulary of {vocab}")
    return mask_id


def _eps(flat: Config, problems: Problems) -> float:
    value = number(flat, "rms_norm_eps", problems, minimum=0, below=1)
    return 1e-6 if value is None else value
