"""The options of each verb, in the order of its help, and the conversion of their values into a request."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from ...plugins.errors import UsageError, nearest
from ...plugins.number_formats import FP8
from ..console.option_fields import Option, option_name, option_of
from ..precision.calibration.calibration_options import CalibrationOptions
from ..precision.precision_options import PrecisionOptions
from .config_file import typed
from .request import BackendOptions, CompileRequest, HeadOptions, ModelRef, PlanOptions, SizeOptions
from .speed_options import SpeedOptions

GROUPS = {
    "pair": ModelRef, "": CompileRequest, "backend": BackendOptions, "precision": PrecisionOptions,
    "calibration": CalibrationOptions, "sizes": SizeOptions, "plans": PlanOptions, "head": HeadOptions,
    "speed": SpeedOptions,
}  # fmt: skip
_RECORDS = ("recipe",)  # entries of a resolved configuration that are not options
# The options of a build from an export; the export fixes all others.
_OF_PLANS = (
    "from_export", "out", "backend", "gpus", "num_speculative_tokens", "max_batch_size", "optimization_level",
    "workspace_gb",
)  # fmt: skip


@dataclass(frozen=True)
class VerbOption:
    """An option of a verb and the request field that stores its value."""

    group: str
    field: str
    option: Option
    type: Any
    default: Any

    @property
    def names(self) -> tuple[str, ...]:
        """The accepted names in an options file; after its group, the field name is accepted too."""
        return self.option.name, option_name(self.option.flag)


def declare_options(
    group: str, *names: str, flag: str = "", help: str = "", default: str = ""
) -> tuple[VerbOption, ...]:
    """Return the entries of a group, or only those of the named fields.

    A verb may use its own ``flag`` or ``help``, or append a ``default`` to the help.
    """
    kind = GROUPS[group]
    types = get_type_hints(kind)
    declarations = {item.name: item for item in fields(kind) if item.metadata}
    entries = []
    for name in names or declarations:
        declared = option_of(declarations[name])
        text = help or f"{declared.help} (default: {default})" if default else help or declared.help
        changed = replace(declared, flag=flag or declared.flag, help=text)
        entries.append(VerbOption(group, name, changed, types[name], declarations[name].default))
    return tuple(entries)


@dataclass(frozen=True)
class VerbOptions:
    """The options of a ``verb``. The default output folder is named after the model and ``suffix``."""

    verb: str
    suffix: str
    parts: tuple[tuple[VerbOption, ...], ...] = field(repr=False)

    def __iter__(self) -> Iterator[VerbOption]:
        return (entry for part in self.parts for entry in part)

    def request(self, **values: Any) -> CompileRequest:
        """Return the request for these option values; None means not given.

        Raises ``UsageError`` for an unknown option or a value of the wrong type.
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
            raise UsageError("no model was specified", fix="specify one, such as --model demo")
        name = Path(os.path.abspath(source or pair.model)).name
        top_level.setdefault("out", Path(f"{name.removesuffix('-onnx') if source else name}-{self.suffix}"))
        return CompileRequest(pair, **top_level, **{name: GROUPS[name](**content) for name, content in groups.items()})

    def _require_of_plans(self, answered: Collection[str], source: Path) -> None:
        """Raise ``UsageError`` for options that the export has fixed."""
        settled = [entry.option.flag for entry in self if entry.option.name in {*answered} - {*_OF_PLANS}]
        if settled:
            raise UsageError(
                f"{', '.join(settled)} and --from {source} cannot be combined",
                why="the models, types, caches and ranges were chosen when the export was made",
                fix=f"omit {'them' if len(settled) > 1 else 'it'}, or export again with "
                f"{'them' if len(settled) > 1 else 'it'}; the options that work with --from are "
                + ", ".join(entry.option.flag for entry in self if entry.option.name in _OF_PLANS[1:]),
            )

    def answers(self, request: CompileRequest) -> dict[str, Any]:
        """Return the option values of a request by name, from which the same request can be made."""
        groups = {"": request} | {name: getattr(request, name) for name in GROUPS if name}
        return {entry.option.name: getattr(groups[entry.group], entry.field) for entry in self}

    def flat(self, content: Mapping[str, Any], origin: str) -> dict[str, Any]:
        """Flatten a mapping whose options may be in groups; ``origin`` names its origin in errors."""
        answers: dict[str, Any] = {}
        for key, value in content.items():
            if key in _RECORDS:
                continue
            if key in GROUPS and isinstance(value, Mapping):
                for name, inner_value in value.items():
                    answers[self.find(f"{key}.{name}", origin).option.name] = inner_value
            else:
                answers[self.find(str(key), origin).option.name] = value
        return answers

    def find(self, key: str, origin: str) -> VerbOption:
        """Return the entry for a name such as ``max_seq_len`` or ``sizes.max_seq_len``.

        Raises ``UsageError``, with similar names, for an unknown one.
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
            f"{origin}: {self.verb} has no option {key!r}",
            why="" if near else f"the options are {', '.join(known)}",
            fix=(f"did you mean {' or '.join(near)}? If not, " if near else "")
            + f"run `peagle-compile {self.verb} --help` for a list; in an options file, write _ instead of -",
        )


BUILD = VerbOptions(
    "build",
    "engine",
    (
        declare_options("pair"),
        declare_options("head"),
        declare_options("", "source"),
        declare_options("", "out", help="Engine folder to write. (default: MODEL-engine)"),
        declare_options("backend", "name", "gpus"),
        declare_options(
            "precision",
            "name",
            default="fp32 for onnxruntime, or stored for a GGUF file with blocks; for TensorRT, fp8 if the "
            "checkpoint is FP8 with input scales, else bf16 if "
            "it has BF16 weights, else fp16",
        ),
        declare_options("precision", "kv_cache", "lm_head", "drafter", "exclude", "allow_wide"),
        declare_options("calibration"),
        declare_options("sizes"),
        declare_options("backend", "lowering", "experts"),
        declare_options("plans"),
        declare_options("speed"),
    ),
)

EXPORT = VerbOptions(
    "export",
    "onnx",
    (
        declare_options("pair"),
        declare_options("head"),
        declare_options("", "out", default="MODEL-onnx"),
        declare_options(
            "backend",
            "lowering",
            flag="--for",
            help="Lowering of the graphs: ort, cpu (ONNX Runtime with this project's kernels), tensorrt, or std "
            "(standard operators only). (default: ort; with --gpu, the variant that TensorRT needs for that GPU)",
        ),
        declare_options(
            "backend",
            "gpus",
            help="GPU that TensorRT will build for, such as b200; selects the variant of `--for tensorrt` graphs "
            "for `build --from`. With --dry-run, also report whether the engine fits.",
        ),
        declare_options("backend", "experts"),
        declare_options(
            "precision",
            "name",
            default="fp32 for ort, std and cpu, except stored for cpu if the model is a GGUF file with quantized "
            "blocks; for tensorrt, bf16 or, with --gpu, the default of `build`",
        ),
        declare_options("precision", "kv_cache", "lm_head", "drafter", "exclude", "allow_wide"),
        declare_options("calibration", "data", "method"),
        declare_options(
            "calibration",
            "num_samples",
            help="Maximum number of samples. (default: 128 for tensorrt; 16 for ort, cpu and std)",
        ),
        declare_options(
            "calibration",
            "max_length",
            help="Maximum sample length in tokens. (default: 512 for tensorrt; 128 for ort, cpu and std)",
        ),
        declare_options("calibration", "device", "scales"),
        declare_options(
            "sizes",
            "num_speculative_tokens",
            help="Maximum number of drafts per round, which determines the size of the caches. (default: the trained "
            "depth)",
        ),
        declare_options(
            "sizes",
            "max_seq_len",
            help="Maximum length of prompt plus output, in tokens; the KV caches grow with it. (default: 2048; for "
            "tensorrt with --gpu, up to 32768 if the model and, for 8 requests, the GPU's memory allow)",
        ),
        declare_options("speed"),
    ),
)

QUANTIZE = VerbOptions(
    "quantize",
    FP8.name,
    (
        declare_options(
            "pair",
            "model",
            help="Target model: a short name (see `models`), a folder with a safetensors checkpoint, or OWNER/NAME on "
            "the Hugging Face Hub.",
        ),
        declare_options("pair", "revision"),
        declare_options("", "out", default="MODEL-fp8"),
        declare_options("precision", "name", help="Type of the quantized matrices: fp8. (default: fp8)"),
        declare_options("calibration", "data"),
        declare_options("calibration", "method"),
        declare_options("calibration", "num_samples", help="Maximum number of samples. (default: 128)"),
        declare_options("calibration", "max_length", help="Maximum sample length in tokens. (default: 512)"),
        declare_options("calibration", "device"),
        declare_options(
            "precision",
            "exclude",
            help="Modules not to quantize, such as 'layers.0.*'. Can be repeated. The LM head, the embedding, routers "
            "and norms are never quantized.",
        ),
        declare_options(
            "precision", "kv_cache", help="With fp8, also store scales for cached keys and values. (default: none)"
        ),
        declare_options(
            "calibration",
            "scales",
            help="Use the ranges of an earlier run (its calibration/ folder) instead of calibrating.",
        ),
    ),
)
