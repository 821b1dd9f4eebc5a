"""Which options each verb asks for, in the order of its help, and the request that answers make of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from ...plugins.errors import UsageError, nearest
from ...plugins.number_formats import FP8
from ..console.option_fields import Option, named, option_of
from ..precision.calibration.calibration_options import CalibrationAsked
from ..precision.precision_options import PrecisionAsked
from .config_file import typed
from .request import BackendAsked, CompileRequest, HeadOptions, ModelRef, PlanAsked, SizeOptions

GROUPS = {
    "pair": ModelRef, "": CompileRequest, "backend": BackendAsked, "precision": PrecisionAsked,
    "calibration": CalibrationAsked, "sizes": SizeOptions, "plans": PlanAsked, "head": HeadOptions,
}  # fmt: skip
_RECORDS = ("recipe",)  # what a resolved configuration says beside the options
# What may be said of a build from an export; all else was settled when that was written.
_OF_PLANS = (
    "from_export", "out", "backend", "gpus", "num_speculative_tokens", "max_batch_size", "optimization_level",
    "workspace_gb",
)  # fmt: skip
_WITHDRAWN = ("weight_streaming",)  # options that there were: one that was not used is no reason to refuse a file


@dataclass(frozen=True)
class Entry:
    """One option of a verb, and the field of a request that keeps its answer."""

    group: str
    field: str
    option: Option
    type: Any
    default: Any

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it has in a file of options; before its group also that of its field."""
        flags = (self.option.flag, self.option.former) if self.option.former else (self.option.flag,)
        return self.option.name, *map(named, flags)


def ask(
    group: str, *names: str, flag: str = "", help: str = "", default: str = "", former: str = ""
) -> tuple[Entry, ...]:
    """The options of a group, or those of its fields that are named.

    A verb may call one otherwise, say other things of it, add what its ``default`` is, or take a ``former`` flag.
    """
    kind = GROUPS[group]
    types = get_type_hints(kind)
    declarations = {item.name: item for item in fields(kind) if item.metadata}
    entries = []
    for name in names or declarations:
        declared = option_of(declarations[name])
        text = help or f"{declared.help} (default: {default})" if default else help or declared.help
        changed = replace(declared, flag=flag or declared.flag, help=text, former=former)
        entries.append(Entry(group, name, changed, types[name], declarations[name].default))
    return tuple(entries)


@dataclass(frozen=True)
class Form:
    """The options of a ``verb``. What it makes is called after the model and ``suffix`` unless told."""

    verb: str
    suffix: str
    parts: tuple[tuple[Entry, ...], ...] = field(repr=False)

    def __iter__(self) -> Iterator[Entry]:
        return (entry for part in self.parts for entry in part)

    def request(self, **values: Any) -> CompileRequest:
        """The request of these answers, by name of the option; None is no answer.

        Raises ``UsageError`` for a name that is no option, or a value of another type.
        """
        groups: dict[str, dict[str, Any]] = {name: {} for name in GROUPS}
        answered = {self.find(key, self.verb).option.name for key, value in values.items() if value is not None}
        for key, value in values.items():
            entry = self.find(key, self.verb)
            if value is not None:
                groups[entry.group][entry.field] = typed(value, entry.type, entry.option, key)
        top_level = groups.pop("")
        pair = ModelRef(**groups.pop("pair"))
        source = top_level.get("source")
        if source is not None:
            self._require_of_plans(answered, source)
        elif not pair.model:
            raise UsageError("no model was named", fix="for example `--model demo`")
        made_of = Path(os.path.abspath(source or pair.model)).name
        top_level.setdefault("out", Path(f"{made_of.removesuffix('-onnx') if source else made_of}-{self.suffix}"))
        return CompileRequest(pair, **top_level, **{name: GROUPS[name](**content) for name, content in groups.items()})

    def _require_of_plans(self, answered: Collection[str], source: Path) -> None:
        """Refuse what an export has settled already."""
        settled = [entry.option.flag for entry in self if entry.option.name in {*answered} - {*_OF_PLANS}]
        if settled:
            raise UsageError(
                f"{', '.join(settled)} and --from {source} contradict each other",
                why="models, types, caches and ranges are those that the export was made with",
                fix=f"leave {'them' if len(settled) > 1 else 'it'} out, or export again with "
                f"{'them' if len(settled) > 1 else 'it'}; with --from go "
                + ", ".join(entry.option.flag for entry in self if entry.option.name in _OF_PLANS[1:]),
            )

    def answers(self, request: CompileRequest) -> dict[str, Any]:
        """What was answered, by name of the option; the same request follows from it."""
        groups = {"": request} | {name: getattr(request, name) for name in GROUPS if name}
        return {entry.option.name: getattr(groups[entry.group], entry.field) for entry in self}

    def flat(self, content: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Answers by option from a mapping that may have them in groups; ``where`` it is from, for errors."""
        answers: dict[str, Any] = {}
        for key, value in content.items():
            if key in _RECORDS or (key in _WITHDRAWN and not value):
                continue
            if key in GROUPS and isinstance(value, Mapping):
                for name, answer in value.items():
                    answers[self.find(f"{key}.{name}", where).option.name] = answer
            else:
                answers[self.find(str(key), where).option.name] = value
        return answers

    def find(self, key: str, where: str) -> Entry:
        """The option of a name such as ``max_seq_len`` or ``sizes.max_seq_len``.

        Raises ``UsageError`` that names what comes near.
        """
        group, dot, name = key.rpartition(".")
        name = name.replace("-", "_")
        for entry in self:
            if name in entry.names and group in ("", entry.group):
                return entry
            if dot and (group, name) == (entry.group, entry.field):
                return entry
        known = [entry.option.name for entry in self]
        near = nearest(name, known, cutoff=0.5)
        raise UsageError(
            f"{where}: {self.verb} has no option {key!r}",
            why=f"did you mean {' or '.join(near)}?" if near else f"the options are: {', '.join(known)}",
            fix=f"`peagle-compile {self.verb} --help` lists them; in a file of options - is _",
        )


BUILD = Form(
    "build",
    "engine",
    (
        ask("pair"),
        ask("head"),
        ask("", "source"),
        ask("", "out", help="Engine folder to make. (default: MODEL-engine)"),
        ask("backend", "name", "gpus"),
        ask(
            "precision",
            "name",
            default="fp32 for onnxruntime; for TensorRT fp8 from an FP8 checkpoint with scales for its inputs, else "
            "bf16 where the checkpoint has any, else fp16",
        ),
        ask("precision", "kv_cache", "lm_head", "drafter", "exclude", "allow_wide"),
        ask("calibration"),
        ask("sizes"),
        ask("backend", "lowering", "experts"),
        ask("plans"),
    ),
)

EXPORT = Form(
    "export",
    "onnx",
    (
        ask("pair"),
        ask("head"),
        ask("", "out", default="MODEL-onnx"),
        ask(
            "backend",
            "lowering",
            flag="--for",
            help="What will run the graphs: ort, tensorrt, or std (standard operators only). (default: ort; with "
            "--gpu, what full TensorRT builds for it)",
        ),
        ask(
            "backend",
            "gpus",
            help="The GPU that TensorRT will build for, for example b200: `--for tensorrt` is then the form that it "
            "builds there, for `build --from`. With --dry-run: also whether it fits.",
        ),
        ask("backend", "experts"),
        ask("precision", "name", default="fp32 for ort and std, bf16 for tensorrt"),
        ask("precision", "kv_cache", "lm_head", "drafter", "exclude", "allow_wide"),
        ask("calibration"),
        ask(
            "sizes",
            "num_speculative_tokens",
            help="Drafts that the caches have room for. (default: the trained depth)",
        ),
        ask("sizes", "max_seq_len"),
    ),
)

QUANTIZE = Form(
    "quantize",
    FP8.name,
    (
        ask("pair", "model", "revision"),
        ask("", "out", default="MODEL-fp8"),
        ask("precision", "name", help="What the matrices become: fp8. (default: fp8)"),
        ask("calibration", "data"),
        ask("calibration", "method", former="--method"),
        ask("calibration", "num_samples", former="--num-samples"),
        ask("calibration", "max_length", former="--max-length"),
        ask("calibration", "device"),
        ask(
            "precision",
            "exclude",
            help="Modules to leave wide, for example 'layers.0.*'. May be given several times. The head, the "
            "embedding, routers and norms always are.",
        ),
        ask("precision", "kv_cache", help="fp8: store scales for cached keys and values as well. (default: none)"),
        ask(
            "calibration",
            "scales",
            help="Ranges of an earlier run (the folder calibration/ of what it made), instead of a calibration.",
        ),
    ),
)
