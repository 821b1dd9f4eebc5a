"""What a P-EAGLE head is: read from its config and tensor shapes, checked against the target it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..plugins.errors import BuildError
from .families.base import CacheSpec, TargetSpec, check_taps, default_taps

Shape = tuple[int, ...]

_MASK_ID_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")
_EXTRA_NORMS = ("norm_before_fc", "fc_norm")


@dataclass(frozen=True)
class HeadSpec:
    """A P-EAGLE drafter (paper section 3; vLLM's flat layout).

    ``keys`` maps the drafter module's parameter names to the names in the checkpoint; ``rope`` holds the config entries
    that define the rotary embedding; ``trained_depth`` is the K it was trained for, when the config says so.
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    cache: CacheSpec
    vocab_size: int
    draft_vocab_size: int
    mask_token_id: int
    rms_norm_eps: float
    norm_before_residual: bool
    taps: tuple[int, ...]
    trained_depth: int | None
    rope: Mapping[str, Any]
    keys: Mapping[str, str]

    @property
    def caches(self) -> tuple[CacheSpec, ...]:
        """One cache per drafter layer."""
        return (self.cache,) * self.num_layers

    @property
    def has_draft_vocabulary(self) -> bool:
        """Whether draft ids need ``d2t`` to become target ids."""
        return "d2t" in self.keys

    @classmethod
    def read(cls, config: Mapping[str, Any], shapes: Mapping[str, Shape], target: TargetSpec) -> HeadSpec:
        """The head in ``config`` with tensors of ``shapes``. Raises ``BuildError`` listing every misfit at once."""
        names = {_module_name(k): k for k in shapes}
        by_name = {n: tuple(shapes[k]) for n, k in names.items()}
        problems = _Problems()
        if "mask_hidden" not in by_name:
            problems.add("no tensor mask_hidden: this is an autoregressive EAGLE-3 head, not a P-EAGLE head")
        for flag in _EXTRA_NORMS:
            if config.get(flag) or config.get("eagle_config", {}).get(flag):
                problems.add(f"config sets {flag}, which is not supported yet")
        hidden = problems.positive(config, "hidden_size")
        layers = problems.positive(config, "num_hidden_layers")
        heads = problems.positive(config, "num_attention_heads")
        inner = problems.positive(config, "intermediate_size")
        vocab = problems.positive(config, "vocab_size")
        mask_id = _first(config, _MASK_ID_KEYS)
        if mask_id is None:
            problems.add(f"config names no mask token id (one of {', '.join(_MASK_ID_KEYS)})")
        elif not 0 <= mask_id < vocab:
            problems.add(f"mask token id {mask_id} is outside the vocabulary of {vocab}")
        if problems.unusable:
            problems.raise_any()
        kv_heads = config.get("num_key_value_heads") or heads
        head_dim = config.get("head_dim") or hidden // heads
        draft_vocab = config.get("draft_vocab_size") or vocab
        wanted_taps = config.get("eagle_aux_hidden_state_layer_ids") or config.get("eagle_config", {}).get(
            "eagle_aux_hidden_state_layer_ids"
        )
        taps = check_taps(wanted_taps or default_taps(target.num_layers), target.num_layers)
        spec = cls(
            hidden_size=hidden,
            target_hidden_size=config.get("target_hidden_size") or hidden,
            intermediate_size=inner,
            num_layers=layers,
            num_heads=heads,
            cache=CacheSpec(kv_heads, head_dim),
            vocab_size=vocab,
            draft_vocab_size=draft_vocab,
            mask_token_id=int(mask_id or 0),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            norm_before_residual=bool(config.get("norm_before_residual", False)),
            taps=taps,
            trained_depth=config.get("num_speculative_tokens"),
            rope={k: config[k] for k in ("rope_theta", "rope_scaling", "rope_parameters") if config.get(k)},
            keys=names,
        )
        if spec.target_hidden_size != target.hidden_size:
            problems.add(
                f"made for a target of hidden size {spec.target_hidden_size}, this one has {target.hidden_size}"
            )
        if vocab != target.vocab_size:
            problems.add(f"vocabulary of {vocab}, the target's has {target.vocab_size}")
        if draft_vocab != vocab and "d2t" not in by_name:
            problems.add(f"draft vocabulary of {draft_vocab} < {vocab} without a d2t tensor")
        for name, shape in spec.expected_shapes().items():
            if name not in by_name and name != "mask_hidden":
                problems.add(f"tensor {name} is missing")
            elif name not in by_name:
                continue  # named above for what it means
            elif name == "mask_hidden":
                if _numel(by_name[name]) != _numel(shape):
                    problems.add(f"mask_hidden holds {_numel(by_name[name])} numbers, needs {_numel(shape)}")
            elif by_name[name] != shape:
                problems.add(f"{names[name]} is {list(by_name[name])}, needs {list(shape)}")
        known = spec.expected_shapes()
        problems.found += [
            f"tensor {names[name]} belongs to no part of a P-EAGLE head known here"
            for name in sorted(by_name)
            if name not in known and name != "t2d" and not name.startswith("verifier_") and "rotary_emb" not in name
        ]
        problems.raise_any()
        return spec

    def expected_shapes(self) -> dict[str, Shape]:
        """Shape of every tensor the drafter needs, by module name."""
        h, kv, q = self.hidden_size, self.cache.heads * self.cache.head_dim, self.num_heads * self.cache.head_dim
        features = len(self.taps) * self.target_hidden_size
        shapes: dict[str, Shape] = {
            "embed_tokens.weight": (self.vocab_size, h),
            "fc.weight": (h, features),
            "mask_hidden": (1, 1, features),
            "norm.weight": (h,),
            "lm_head.weight": (self.draft_vocab_size, h),
            "layers.0.hidden_norm.weight": (h,),
        }
        if self.has_draft_vocabulary:
            shapes["d2t"] = (self.draft_vocab_size,)
        for i in range(self.num_layers):
            width = 2 * h if i == 0 else h
            shapes |= {
                f"layers.{i}.self_attn.q_proj.weight": (q, width),
                f"layers.{i}.self_attn.k_proj.weight": (kv, width),
                f"layers.{i}.self_attn.v_proj.weight": (kv, width),
                f"layers.{i}.self_attn.o_proj.weight": (h, q),
                f"layers.{i}.mlp.gate_proj.weight": (self.intermediate_size, h),
                f"layers.{i}.mlp.up_proj.weight": (self.intermediate_size, h),
                f"layers.{i}.mlp.down_proj.weight": (h, self.intermediate_size),
                f"layers.{i}.input_layernorm.weight": (h,),
                f"layers.{i}.post_attention_layernorm.weight": (h,),
            }
        return shapes


class _Problems:
    """Collects every misfit, so that a user fixes a checkpoint once."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.unusable = False  # a size without which no shape can be checked

    def add(self, problem: str) -> None:
        self.found.append(problem)

    def positive(self, config: Mapping[str, Any], name: str) -> int:
        value = config.get(name)
        if not isinstance(value, int) or value <= 0:
            self.add(f"config entry {name} must be a positive integer, not {value!r}")
            self.unusable = True
            return 1
        return value

    def raise_any(self) -> None:
        if self.found:
            raise BuildError(
                f"the drafter head does not fit ({len(self.found)} problem{'s' * (len(self.found) > 1)}):\n"
                + "\n".join(f"    - {p}" for p in self.found),
                why="a head works only with the target, the taps and the vocabulary it was trained for",
                fix="use the P-EAGLE head that was trained for this target",
            )


def _module_name(key: str) -> str:
    """Checkpoint name -> module name: the fusion layer is layer 0, a leading ``model.`` is optional."""
    name = key.removeprefix("model.")
    return "layers.0." + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name


def _first(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        if config.get(key) is not None:
            try:
                return int(config[key])
            except (TypeError, ValueError):
                return None
    return None


def _numel(shape: Shape) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
