"""Obtain calibrated ranges: load saved ones, or calibrate with the requested samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from ...checkpoints.target import Target
from ...console.progress import Progress
from ...store.publish import TOKENIZER
from ...store.stages import StageStore
from .calibration_options import CPU, METHODS, CalibrationOptions
from .dataset import FOR_PLANS, SampleLimits

if TYPE_CHECKING:
    from .range_methods import Method
    from .saved_ranges import Scales


def obtain(
    options: CalibrationOptions,
    target: Target,
    store: StageStore,
    progress: Progress,
    *,
    model: str = "",
    defaults: SampleLimits = FOR_PLANS,
) -> Scales:
    """Load or calibrate the ranges of a target; ``model`` is its display name.

    ``defaults`` apply where the user set no limits.

    Raises ``BuildError`` for ranges of another model, ``UsageError`` for unusable samples, and
    ``EnvironmentProblem`` for a missing device.
    """
    from .calibrate import Settings, calibrate
    from .dataset import bundled, read_jsonl
    from .devices import require_device
    from .encoder import Encoder
    from .saved_ranges import Scales

    if options.scales is not None:
        saved = Scales.load(options.scales, target.skeleton.range_shapes)
        with progress.step("compare the weights with the calibrated ones"):
            saved.check_model(target.checkpoint.fingerprint)
        return saved
    device = options.device or CPU
    require_device(device)
    limits = limits_of(options, defaults)
    with progress.step("read the samples"):
        folder, vocab_size = target.folder, target.spec.vocab_size
        has_tokenizer = (folder / TOKENIZER).is_file()
        if options.data is None:
            samples = bundled(Encoder.open(folder), vocab_size, limits)
        else:
            encoder = Encoder.open(folder) if has_tokenizer else None
            samples = read_jsonl(options.data, encoder, vocab_size, limits)
    samples = samples.with_shortage_warnings(options.num_samples, options.max_length)
    settings = Settings(method=_method(options.method or METHODS[0]), device=device)
    return calibrate(target, samples, settings, store, progress, model=model)


def limits_of(options: CalibrationOptions, defaults: SampleLimits) -> SampleLimits:
    """Return the limits of the request, or the ``defaults``."""
    count, length = options.num_samples or defaults.max_samples, options.max_length or defaults.max_length
    return replace(defaults, max_samples=count, max_length=length)


def settled(options: CalibrationOptions, defaults: SampleLimits) -> CalibrationOptions:
    """Return the request with the ``defaults`` for the bundled samples filled in."""
    if options.scales is not None or options.data is not None:
        return options
    limits = limits_of(options, defaults)
    return replace(options, num_samples=limits.max_samples, max_length=limits.max_length)


def origin(scales: Scales) -> dict[str, Any]:
    """Return the origin of ranges: equal for two calibrations with the same settings."""
    facts = scales.facts
    return {
        "method": dict(facts.method),
        "dataset": facts.dataset,
        "samples": facts.samples,
        "num_samples": facts.num_samples,
        "num_tokens": facts.num_tokens,
    }


def describe(scales: Scales) -> dict[str, Any]:
    """Return the origin of ranges, and notes on them, for a report."""
    from .lm_head_loss import LmHeadLoss
    from .rarely_used_experts import FEWEST, rarely_used_experts
    from .saturation import Saturation

    rare = rarely_used_experts(scales.expert_tokens)
    record = origin(scales) | {"device": scales.facts.device}
    if scales.peaks:
        record["saturation"] = Saturation.of(scales.ranges, scales.clipped, scales.peaks).record()
    if scales.head_costs:
        record["lm_head"] = [asdict(each) for each in LmHeadLoss.of(scales.head_costs)]
    if scales.expert_tokens:
        record["experts"] = {
            "experts": sum(map(len, scales.expert_tokens.values())),
            "unseen": sum(not each.tokens for each in rare),
            "fewer_than": FEWEST,
            "seldom": [asdict(each) for each in rare],
        }
    return record


def in_words(scales: Scales) -> str:
    """Return the origin of ranges in one line; the digest covers the token sequences."""
    facts = scales.facts
    return (
        f"{facts.method['name']} over {facts.num_tokens} tokens in {facts.num_samples} samples of {facts.dataset} "
        f"({facts.samples[:12]})"
    )


def _method(name: str) -> Method:
    from .range_methods import Max, Mse, Percentile

    methods: Mapping[str, Method] = {"max": Max(), "percentile": Percentile(), "mse": Mse()}
    return methods[name]
