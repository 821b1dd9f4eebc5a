"""Shell completion of option values, from names known without reading a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ....plugins.number_formats import FP32, NUMBER_FORMATS, quantized_formats
from ...request.request import CPU_LOWERINGS
from ...request.verb_options import VerbOption

Complete = Callable[[str], list[str]]


def completion(entry: VerbOption) -> Complete | None:
    """Return the completer of an option's value; None leaves it to the shell, which completes file names."""
    names = _NAMES.get((entry.group, entry.field))
    if names is None:
        return None
    if entry.option.flag == "--for":
        names = _lowerings
    return several(names) if entry.option.split else one_of(names)


def one_of(names: Callable[[], Iterable[str]]) -> Complete:
    """Return a completer for one of ``names``, which are looked up when the shell asks."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def several(names: Callable[[], Iterable[str]]) -> Complete:
    """Return a completer for the last of several comma-separated ``names``, which are looked up when the shell asks."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last)]

    return complete


def model_names() -> Iterable[str]:
    """Return the short names of model pairs."""
    from ...checkpoints.known_pairs import PAIRS

    return PAIRS


def _draft_names() -> Iterable[str]:
    from ....engines.draft_methods import names_for_builds

    return names_for_builds()


def recipe_names() -> Iterable[str]:
    """Return the values of ``--precision``."""
    from ...precision.recipes import RECIPES

    return RECIPES


def backend_names() -> Iterable[str]:
    """Return the values of ``--backend``."""
    from ...request.request import BACKENDS

    return BACKENDS


def gpu_names() -> Iterable[str]:
    """Return the GPUs with known memory sizes, and the architectures that plans are built for."""
    from ...hardware.gpus import GPUS, sm_name

    return [*GPUS, *sorted({sm_name(gpu.sm) for gpu in GPUS.values()})]


def _lowerings() -> Iterable[str]:
    from ....graphs.lowering import LOWERINGS

    return LOWERINGS


def _forms() -> Iterable[str]:
    from ...request.expert_lowering import FORMS

    return FORMS


def _methods() -> Iterable[str]:
    from ...precision.calibration.calibration_options import METHODS

    return METHODS


_NAMES: dict[tuple[str, str], Callable[[], Iterable[str]]] = {
    ("pair", "model"): model_names,
    ("pair", "draft"): lambda: [*model_names(), *_draft_names()],
    ("backend", "name"): backend_names,
    ("backend", "gpus"): gpu_names,
    ("backend", "lowering"): lambda: CPU_LOWERINGS,
    ("backend", "experts"): _forms,
    ("precision", "name"): recipe_names,
    ("precision", "kv_cache"): lambda: [each.name for each in NUMBER_FORMATS.values() if each.caches or each is FP32],
    ("precision", "lm_head"): lambda: [each.name for each in quantized_formats()],
    ("precision", "drafter"): lambda: [each.name for each in quantized_formats() if each.drafts(tensorrt=False)],
    ("calibration", "method"): _methods,
    ("calibration", "device"): lambda: ("cpu", "cuda"),
}
