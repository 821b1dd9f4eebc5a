"""Where calibrated ranges come from: a folder that was saved before, or a calibration with these samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....plugins.errors import UsageError
from ...checkpoints.target import Target
from ...console.progress import Progress
from ...store.publish import TOKENIZER
from ...store.stages import StageStore
from .scales import FACTS

if TYPE_CHECKING:
    from .methods import Method
    from .scales import Scales

FOLDER = "calibration"  # of an engine, an export or an FP8 checkpoint, for ``--scales``
_SCALES = f"name the folder {FOLDER}/ of an engine, an export or an FP8 checkpoint made here"
METHODS = ("max", "percentile", "mse")
FLAGS: Mapping[str, str] = {
    "data": "--calib-data", "method": "--calib-method", "num_samples": "--calib-samples", "max_length": "--calib-length"
}  # fmt: skip


@dataclass(frozen=True)
class RangesFrom:
    """``scales`` is a folder of ranges that were saved before, in place of a calibration.

    None leaves ``data`` to the bundled samples, ``method`` to max, ``num_samples`` to 128 and ``max_length`` to 512
    tokens.
    """

    data: Path | None = None
    method: str | None = None
    num_samples: int | None = None
    max_length: int | None = None
    scales: Path | None = None

    def given(self, flags: Mapping[str, str] = FLAGS) -> list[str]:
        """The flags of a calibration that were given."""
        return [flag for name, flag in flags.items() if getattr(self, name) is not None]

    def check(self, flags: Mapping[str, str] = FLAGS) -> None:
        """Refuse what can be refused before anything is read."""
        if self.method not in (None, *METHODS):
            raise UsageError(f"the method {self.method!r} does not exist", fix=f"it is one of {', '.join(METHODS)}")
        given = self.given(flags)
        if self.scales is not None and given:
            raise UsageError(
                f"--scales does not go with {', '.join(given)}",
                why="saved ranges are used as they are, and nothing is calibrated",
                fix="leave one or the other out",
            )
        for flag, path in (("--calib-data", self.data), ("--scales", self.scales)):
            if path is not None and not path.exists():
                fix = _SCALES if path is self.scales else "name a JSON Lines file that is there"
                raise UsageError(f"{flag} {path} does not exist", fix=fix)
        if self.scales is not None and not (self.scales / FACTS).is_file():
            below = self.scales / FOLDER
            raise UsageError(
                f"--scales {self.scales} holds no calibrated ranges",
                why=f"there is no {FACTS} in it",
                fix=f"use --scales {below}" if (below / FACTS).is_file() else _SCALES,
            )

    def obtain(self, target: Target, store: StageStore, progress: Progress, *, model: str = "") -> Scales:
        """The ranges of a target, loaded or calibrated; ``model`` is what to call it.

        Raises ``BuildError`` for ranges of another model, ``UsageError`` for samples that are no use.
        """
        from . import Encoder, SampleLimits, Scales, Settings, bundled, calibrate, read_jsonl

        if self.scales is not None:
            saved = Scales.load(self.scales, target.skeleton.range_shapes)
            with progress.step("compare the weights with those that were calibrated"):
                saved.check_model(target.checkpoint.fingerprint)
            return saved
        defaults = SampleLimits()
        limits = SampleLimits(self.num_samples or defaults.max_samples, self.max_length or defaults.max_length)
        with progress.step("read the samples"):
            folder, vocab_size = target.folder, target.spec.vocab_size
            has_tokenizer = (folder / TOKENIZER).is_file()
            if self.data is None:
                samples = bundled(Encoder.open(folder), vocab_size, limits)
            else:
                encoder = Encoder.open(folder) if has_tokenizer else None
                samples = read_jsonl(self.data, encoder, vocab_size, limits)
        settings = Settings(method=_method(self.method or METHODS[0]))
        return calibrate(target, samples, settings, store, progress, model=model)


def describe(scales: Scales) -> dict[str, Any]:
    """The origin of ranges, for a report."""
    facts = scales.facts
    return {
        "method": dict(facts.method),
        "dataset": facts.dataset,
        "samples": facts.samples,
        "num_samples": facts.num_samples,
        "num_tokens": facts.num_tokens,
    }


def in_words(scales: Scales) -> str:
    """The origin of ranges in one line; the digest is of the token sequences."""
    facts = scales.facts
    return (
        f"{facts.method['name']} over {facts.num_tokens} tokens in {facts.num_samples} samples of {facts.dataset} "
        f"({facts.samples[:12]})"
    )


def _method(name: str) -> Method:
    from . import Max, Mse, Percentile

    methods: Mapping[str, Method] = {"max": Max(), "percentile": Percentile(), "mse": Mse()}
    return methods[name]
