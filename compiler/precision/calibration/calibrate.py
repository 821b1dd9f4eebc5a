"""Calibrate a target layer by layer: one layer's weights in memory, the streams of all samples on disk."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from ....graphs.names import LM_HEAD, layer_prefix, weight_name
from ....plugins.graph_contract import is_cache
from ...checkpoints.target import Target
from ...console import interrupts
from ...console.exit_cleanup import remove_on_exit
from ...console.progress import Advance, Progress, Quiet
from ...store.atomic_files import require_space
from ...store.stages import StageStore
from .dataset import Samples
from .range_methods import Max, Method
from .rarely_used_experts import fill_unseen, warn_rarely_used
from .resume import Array, CalibrationFolder, States
from .saturation import Saturation
from .saved_ranges import Facts, Scales

if TYPE_CHECKING:
    from torch import Tensor

    from .layerwise import Dtype, Layerwise
    from .observers import Watch

# The groups of a step's observations.
_RANGES, _TOKENS, _SQUARES, _CLIPPED, _PEAKS, _HEAD = "ranges", "tokens", "squares", "clipped", "peaks", "head_costs"
_LIBRARIES = ("torch", "transformers")
_SMALL = 1_000_000  # weights of a layer


@dataclass(frozen=True)
class Settings:
    """The range method, and the type of weights and streams: bfloat16 takes half the memory.

    ``lm_head`` is the method for the input of the LM head, if it is rounded to another type than those of the layers.
    ``device`` is the torch device for the layers, checked with ``devices.require_device``.
    """

    method: Method = field(default_factory=Max)
    lm_head: Method | None = None
    dtype: Dtype = "float32"
    device: str = "cpu"

    def describe(self) -> dict[str, Any]:
        """Return names and parameters of the methods, for keys and records."""
        described = self.method.describe()
        return described if self.lm_head is None else described | {"lm_head": self.lm_head.describe()}

    @property
    def kind(self) -> str:
        """The kind of device, which affects the last digits; all CUDA devices count as equal."""
        return self.device.partition(":")[0]


def calibrate(
    target: Target,
    samples: Samples,
    settings: Settings,
    store: StageStore,
    progress: Progress | None = None,
    *,
    model: str = "",
) -> Scales:
    """Calibrate the range of everything that a quantized target rounds. ``model`` is its name, else its folder's.

    Host memory holds the weights of one decoder layer, or the LM head twice, the embeddings of the tokens that occur,
    and one sample's activations (eager attention: heads * S * S values); memory of ``settings.device`` the layer and
    one sample; the disk twice ``samples.tokens * hidden_size`` values. Every finished layer is kept in ``store``, and
    the same call resumes from there. Raises ``BuildError`` for samples or weights that do not match the model, and for
    unusable ranges.
    """
    checkpoint, spec = target.checkpoint, target.spec
    samples.check(spec.vocab_size)
    versions = {library: version(library) for library in _LIBRARIES}
    key = [checkpoint.fingerprint, samples.digest, settings.describe(), settings.dtype, settings.kind, versions]
    needed = 2 * samples.tokens * spec.hidden_size * (4 if settings.dtype == "float32" else 2)
    with CalibrationFolder.open(store, _run, key, needed) as resumable:
        done, steps = resumable.finished(), spec.num_layers + 2
        if done < steps:
            require_space(store.root, needed)
            _run(_Calibration(target, samples, settings, resumable), done, progress or Quiet())
        groups = _grouped({name: value for step in range(steps) for name, value in resumable.ranges(step).items()})
    ranges, tokens = groups[_RANGES], groups[_TOKENS]
    caches = {name: value for name, value in ranges.items() if is_cache(name)}
    inputs = {name: value for name, value in ranges.items() if name not in caches}
    saturation = Saturation.of(ranges, groups[_CLIPPED], groups[_PEAKS])
    facts = Facts(
        model=model or checkpoint.folder.name,
        architecture=spec.architecture,
        fingerprint=checkpoint.fingerprint,
        method=settings.describe(),
        dtype=settings.dtype,
        dataset=samples.name,
        samples=samples.digest,
        num_samples=len(samples.ids),
        num_tokens=samples.tokens,
        versions=versions,
        warnings=(*samples.warnings, *warn_rarely_used(tokens), *saturation.warnings()),
        device=settings.kind,
    )
    scales = Scales(
        fill_unseen(inputs, tokens), caches, tokens, facts,
        groups[_SQUARES], groups[_CLIPPED], groups[_PEAKS], groups[_HEAD],
    )  # fmt: skip
    scales.check(target.skeleton.range_shapes)
    return scales


@dataclass(frozen=True)
class _Calibration:
    """Shared state of all steps of a calibration.

    Step 0 embeds, step i + 1 is decoder layer i, the last one the norm before the head.
    """

    target: Target
    samples: Samples
    settings: Settings
    resumable: CalibrationFolder


def _run(work: _Calibration, done: int, progress: Progress) -> None:
    """Run every step from ``done`` on."""
    import torch

    from .layerwise import DTYPES, Layerwise

    layers = work.target.spec.num_layers
    model = Layerwise(work.target, work.settings.dtype, work.settings.device)
    states = States(work.samples.lengths, work.target.spec.hidden_size, DTYPES[work.settings.dtype])
    first = max(done - 1, 0)
    text = f"calibrate layers {first} to {layers - 1}" if first < layers else "calibrate the head"
    tokens = work.samples.tokens * max(layers - first, 1)
    calm = _threads_for(work.target) if work.settings.kind == "cpu" else nullcontext()
    with calm, remove_on_exit(work.resumable.scratch), torch.no_grad(), progress.step(text, tokens) as advance:
        for step in range(done, layers + 2):
            interrupts.check()
            observed: dict[str, Array] = {}
            if step == 0:
                states.write(work.resumable.scratch, model.embed(work.samples.ids))
            elif step <= layers:
                observed = _layer(work, model, states, step - 1, advance)
            else:
                observed = _head(work, model, states)
            work.target.checkpoint.require_unchanged()
            work.resumable.finish(step, observed)


@contextmanager
def _threads_for(target: Target) -> Iterator[None]:
    """Compute the layers of a small model on one thread.

    If an operation takes less time than waking a thread, threads only wait for each other: on a busy machine, the demo
    target took seven times as long with two.
    """
    import torch

    prefix, before = layer_prefix(0), torch.get_num_threads()
    largest = sum(weight.count for weight in target.skeleton.weights if weight.name.startswith(prefix))
    if largest >= _SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _layer(work: _Calibration, model: Layerwise, states: States, index: int, advance: Advance) -> dict[str, Array]:
    """Run all samples through decoder layer ``index`` and return the observations."""
    from .observers import Watch

    watch = Watch(work.settings.method)

    def streams() -> Iterator[Tensor]:
        with model.layer(index) as layer, watch.on(layer, layer_prefix(index)):
            for sample, hidden in enumerate(states.read(work.resumable.streams(index))):
                with watch.sample(sample):
                    yield model.run(layer, index, hidden, watch)
                advance(hidden.shape[1])
                interrupts.check()

    states.write(work.resumable.scratch, streams())
    return _observations(watch)


def _head(work: _Calibration, model: Layerwise, states: States) -> dict[str, Array]:
    """Observe the inputs of the head, and measure what rounding it costs; it has no output stream."""
    from .lm_head_costs import TOKENS, lm_head_costs
    from .observers import Watch

    watch, streams, name = Watch(work.settings.lm_head or work.settings.method), [], weight_name(LM_HEAD)
    every = math.ceil(work.samples.tokens / TOKENS)
    with model.norm() as norm:
        for sample, hidden in enumerate(states.read(work.resumable.streams(work.target.spec.num_layers))):
            with watch.sample(sample):
                watch.enter(name, model.normed(norm, hidden))
            streams.append(hidden[:, ::every].clone())
    observed = _observations(watch)
    costs = lm_head_costs(model, streams, float(observed[f"{_RANGES}:{name}"]))
    states.write(work.resumable.scratch, [])
    return observed | {f"{_HEAD}:{kind}": cost for kind, cost in costs.items()}


def _observations(watch: Watch) -> dict[str, Array]:
    """Return all observations of one step, with names prefixed by their group."""
    ranges = watch.ranges()
    groups = {
        _RANGES: ranges, _TOKENS: watch.tokens(), _SQUARES: watch.squares(),
        _CLIPPED: watch.clipped(ranges), _PEAKS: watch.peaks(),
    }  # fmt: skip
    return {f"{group}:{name}": np.asarray(value) for group, values in groups.items() for name, value in values.items()}


def _grouped(values: Mapping[str, Array]) -> Mapping[str, dict[str, Array]]:
    """Split the result of ``_observations`` by group."""
    groups: dict[str, dict[str, Array]] = defaultdict(dict)
    for key, value in values.items():
        group, _, name = key.partition(":")
        groups[group][name] = value
    return groups
