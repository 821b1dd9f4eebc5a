"""Obtain calibrated ranges: load saved ones, or calibrate with the requested samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ....plugins.errors import BuildError
from ...checkpoints.target import Target
from ...console.progress import Progress
from ...store.publish import TOKENIZER
from ...store.stages import StageStore
from .calibration_options import CPU, METHODS, CalibrationOptions
from .dataset import FOR_PLANS, SampleLimits

if TYPE_CHECKING:
    from .calibrate import Settings
    from .range_methods import Method, RoundedTo
    from .saved_ranges import Scales


@dataclass(frozen=True)
class InputTypes:
    """The types that a build rounds the inputs of the layers' linears and of the LM head to; None: to none."""

    layers: RoundedTo | None = None
    lm_head: RoundedTo | None = None

    @classmethod
    def recorded(cls, method: Any) -> InputTypes:
        """Return the types that ranges were chosen for, by the description of their method; None: for all types."""
        from .range_methods import ROUNDED

        def of(described: Any) -> RoundedTo | None:
            found = described.get("number_format") if isinstance(described, dict) else None
            return next((each for each in ROUNDED.values() if each == found), None)

        return cls(of(method), of(method.get("lm_head", method)) if isinstance(method, dict) else None)


IN_E4M3 = InputTypes("e4m3", "e4m3")


def obtain(
    options: CalibrationOptions,
    target: Target,
    store: StageStore,
    progress: Progress,
    *,
    model: str = "",
    defaults: SampleLimits = FOR_PLANS,
    input_types: InputTypes = IN_E4M3,
) -> Scales:
    """Load or calibrate the ranges of a target; ``model`` is its display name.

    ``defaults`` apply where the user set no limits. ``input_types`` matter to methods that minimize a rounding error.

    Raises ``BuildError`` for ranges of another model or for other types, ``UsageError`` for unusable samples, and
    ``EnvironmentProblem`` for a missing device.
    """
    from .calibrate import calibrate
    from .dataset import bundled, read_jsonl
    from .devices import require_device
    from .encoder import Encoder
    from .saved_ranges import Scales

    if options.scales is not None:
        saved = Scales.load(options.scales, target.skeleton.range_shapes)
        with progress.step("compare the weights with the calibrated ones"):
            saved.check_model(target.checkpoint.fingerprint)
        _check_types(saved, input_types)
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
    settings = _settings(options.method or METHODS[0], input_types, device)
    return calibrate(target, samples, settings, store, progress, model=model)


def limits_of(options: CalibrationOptions, defaults: SampleLimits) -> SampleLimits:
    """Return the limits of the request, or the ``defaults``."""
    count, length = options.num_samples or defaults.max_samples, options.max_length or defaults.max_length
    return replace(defaults, max_samples=count, max_length=length)


def with_defaults(options: CalibrationOptions, defaults: SampleLimits) -> CalibrationOptions:
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


def _settings(method: str, input_types: InputTypes, device: str) -> Settings:
    from .calibrate import Settings
    from .range_methods import Max, Mse, Percentile

    def rounding_to(number_format: RoundedTo) -> Method:
        methods: Mapping[str, Method] = {"max": Max(), "percentile": Percentile(), "mse": Mse(number_format)}
        return methods[method]

    layers, lm_head = (rounding_to(each or "e4m3") for each in (input_types.layers, input_types.lm_head))
    return Settings(method=layers, lm_head=None if lm_head == layers else lm_head, device=device)


def _check_types(saved: Scales, input_types: InputTypes) -> None:
    """Raise ``BuildError`` if saved ranges were chosen for rounding to other types; those of most methods suit all."""
    chosen_for = InputTypes.recorded(saved.facts.method)
    for inputs, chosen, rounded in (
        ("layers", chosen_for.layers, input_types.layers),
        ("LM head", chosen_for.lm_head, input_types.lm_head),
    ):
        if chosen and rounded and chosen != rounded:
            raise BuildError(
                f"the calibrated ranges of {saved.facts.model} were chosen for inputs in {chosen}, but this build "
                f"rounds the inputs of the {inputs} to {rounded}",
                why=f"the method {saved.facts.method['name']} minimizes the rounding error of one type",
                fix="calibrate again for this precision, or use ranges of the methods max or percentile",
            )
