"""What a shell is offered for a value: names that are known without a look at any checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ....plugins.number_formats import NUMBER_FORMATS, quantized_formats
from ...request.verb_options import Entry

Complete = Callable[[str], list[str]]


def completion(entry: Entry) -> Complete | None:
    """What completes the value of an option; None leaves it to the shell, which knows files."""
    names = _NAMES.get((entry.group, entry.field))
    if names is None:
        return None
    if entry.option.flag == "--for":
        names = _lowerings
    return _several(names) if entry.option.split else one_of(names)


def one_of(names: Callable[[], Iterable[str]]) -> Complete:
    """Completes one of ``names``, which are asked for when a shell asks."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def _several(names: Callable[[], Iterable[str]]) -> Complete:
    """Completes the last of names that commas part."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last)]

    return complete


def model_names() -> Iterable[str]:
    """The short names of pairs."""
    from ...checkpoints.known_pairs import PAIRS

    return PAIRS


def _draft_names() -> Iterable[str]:
    from ....engines.draft_methods import names_for_builds

    return names_for_builds()


def recipe_names() -> Iterable[str]:
    """The names that ``--precision`` takes."""
    from ...precision.recipes import RECIPES

    return RECIPES


def backend_names() -> Iterable[str]:
    """What runs engines."""
    from ...request.request import BACKENDS

    return BACKENDS


def gpu_names() -> Iterable[str]:
    """The GPUs whose memory is known, and the architectures that plans are made for."""
    from ...hardware.gpus import GPUS, sm_name

    return [*GPUS, *sorted({sm_name(gpu.sm) for gpu in GPUS.values()})]


def _lowerings() -> Iterable[str]:
    from ....graphs.lowering import LOWERINGS

    return LOWERINGS


def _forms() -> Iterable[str]:
    from ...request.experts_form import FORMS

    return FORMS


def _methods() -> Iterable[str]:
    from ...precision.calibration.calibration_options import METHODS

    return METHODS


_NAMES: dict[tuple[str, str], Callable[[], Iterable[str]]] = {
    ("pair", "model"): model_names,
    ("pair", "draft"): lambda: [*model_names(), *_draft_names()],
    ("backend", "name"): backend_names,
    ("backend", "gpus"): gpu_names,
    ("backend", "lowering"): lambda: ("cpu", "ort", "std"),
    ("backend", "experts"): _forms,
    ("precision", "name"): recipe_names,
    ("precision", "kv_cache"): lambda: [each.name for each in NUMBER_FORMATS.values() if each.caches],
    ("precision", "lm_head"): lambda: [each.name for each in quantized_formats()],
    ("precision", "drafter"): lambda: [each.name for each in quantized_formats() if each.drafts(tensorrt=False)],
    ("calibration", "method"): _methods,
    ("calibration", "device"): lambda: ("cpu", "cuda"),
}
