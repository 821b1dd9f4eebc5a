"""``peagle-compile inspect``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from ...engines.draft_methods import headless_named, method_named
from ...plugins.graph_contract import is_cache
from ...plugins.problems import counted
from ..console.printing import columns, emit, interruptible, size
from .flags.shared_flags import Json

Folder = Annotated[
    Path,
    typer.Argument(metavar="FOLDER", help="Folder made by `build`, `export` or `quantize`.", show_default=False),
]


@interruptible("nothing was changed")
def inspect(
    folder: Folder,
    hashes: Annotated[bool, typer.Option(help="Verify the hash of every file.")] = True,
    as_json: Json = False,
) -> None:
    """Check the integrity of an engine, an export or a quantized checkpoint, and show its contents.

    This command needs neither a GPU nor TensorRT.

    Example: peagle-compile inspect demo-engine
    """
    from ..store.destination import is_export, is_quantized

    if is_export(folder):
        rows, content = _export(folder, hashes=hashes)
    elif is_quantized(folder):
        rows, content = _quantized(folder)
    else:
        from ..pipeline.reports.engine_contents import inspect_engine

        content = inspect_engine(folder, hashes=hashes)
        rows = _rows(content)
    if as_json:
        emit(content)
    else:
        print(columns(rows))


def _export(folder: Path, *, hashes: bool) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """Return the record of an export, as rows and as JSON content."""
    from ..pipeline.reports.recorded_contents import inspect_export
    from .precision_rows import first_rows

    shown_rows, content = inspect_export(folder, hashes=hashes)
    rows = [
        *first_rows(shown_rows.multiplied),
        ("export", f"{folder}, {size(content['bytes'])}, made by peagle-compile {shown_rows.product_version}"),
        ("for", shown_rows.lowering),
        *([("weights from", shown_rows.stored)] if shown_rows.stored else []),
        ("precision", shown_rows.precision),
        ("model", shown_rows.model),
        ("drafter", _drafter_of(shown_rows.draft)),
        ("max_seq_len", f"{shown_rows.max_seq_len} (caches hold {shown_rows.cache_length})"),
        ("speculative tokens", f"up to {shown_rows.max_num_speculative_tokens}"),
        *_speed(content),
        *((f"{name} checkpoint", revision[:16]) for name, revision in shown_rows.checkpoints.items()),
        *((name, size(entry.size)) for name, entry in shown_rows.files.items()),
    ]
    return rows, content


def _drafter_of(draft: str | None) -> str:
    if draft is None:
        return "none: the target was exported without a drafter"
    method = headless_named(draft)
    return f"none: {method.help}" if method else draft


def _quantized(folder: Path) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """Return the record of a quantized checkpoint, as rows and as JSON content."""
    from ..pipeline.reports.recorded_contents import inspect_quantized

    shown_rows, content = inspect_quantized(folder)
    ranges = shown_rows.calibration
    rows = [
        ("checkpoint", f"{folder}, {size(shown_rows.bytes)}, made by peagle-compile {shown_rows.product_version}"),
        ("format", shown_rows.format),
        ("model", shown_rows.model),
        ("  checkpoint", f"{shown_rows.source_fingerprint[:16]}, {size(shown_rows.source_bytes)}"),
        ("FP8", f"{shown_rows.fp8_matrices} matrices, {size(shown_rows.fp8_bytes)}"),
        ("excluded", ", ".join(shown_rows.exclude) or "only what the recipe excludes"),
        ("KV cache", shown_rows.kv_cache_dtype or "no scales"),
        ("calibrated with", f"{ranges.num_tokens} tokens in {ranges.num_samples} samples of {ranges.dataset}"),
        *(("warning", warning) for warning in shown_rows.warnings),
        *((name, size(count)) for name, count in content["files"].items()),
    ]
    return rows, content


def _k(speculation: dict[str, Any]) -> str:
    """Return the engine's default number of speculative tokens, in words."""
    return f"{speculation['num_speculative_tokens']}{' initially, then adaptive' if speculation['adapts'] else ''}"


def _rows(engine: dict[str, Any]) -> list[tuple[str, Any]]:
    from ..precision.product_table import described
    from ..precision.recipes import lead_sentence
    from .precision_rows import first_rows, stored_rows

    speculation, shapes, backend = engine["speculation"], engine["shapes"], engine["backend"]
    gpus = f" for {', '.join(backend['gpus'])}" if backend["gpus"] else ""
    drafts = [
        ("speculative tokens", f"{_k(speculation)} (trained for {speculation['trained_depth']})"),
        ("taps", ", ".join(map(str, shapes["taps"]))),
    ]
    method = method_named(engine["method"])
    if method.needs_head:
        drafts.insert(1, ("method", f"{method.title}: {method.note}" if method.note else method.title))
    else:
        max_drafts = speculation["max_num_speculative_tokens"]
        k = f"{_k(speculation)}, {method.note or method.title}, at most {max_drafts}; no drafter"
        drafts = [("speculative tokens", k if method.drafts else f"none: {method.help}, no drafter")]
    heads = f" (drafter {shapes['draft_vocab_size']})" if engine["drafter"] else ""
    rows: list[tuple[str, Any]] = [
        *first_rows(lead_sentence(engine["precision"])),
        ("engine", f"{engine['engine']}, {size(engine['bytes'])}, made by peagle-compile {engine['product_version']}"),
        ("backend", f"{backend['name']} {backend['versions'].get(backend['name'], '')}{gpus}"),
        ("lowering", backend["lowering"]),
        *stored_rows(engine["precision"]),
        *_precision(engine["precision"]),
        *drafts,
        ("max_seq_len", f"{shapes['max_seq_len']} (caches hold {shapes['cache_length']})"),
        *([("KV caches", f"{size(engine['cache_bytes'])} per request")] if engine["cache_bytes"] else []),
        ("vocabulary", f"{shapes['vocab_size']}{heads}"),
        *_speed(engine),
        ("evidence", "; ".join(f"{item['level']}: {item['how']}" for item in engine["evidence"]) or "none"),
        ("reports", ", ".join(engine["reports"]) or "none; `peagle-compile verify` writes verify.json"),
    ]
    for name, part in ((name, engine[name]) for name in ("target", "drafter") if engine[name]):
        rows += [
            (name, f"{part['origin']['id']} ({part['origin']['architecture']}), {counted(part['caches'], 'layer')}"),
            ("  revision", part["origin"]["revision"][:16]),
        ]
        if part["plan"]:
            rows += _plan(part)
        else:
            rows += [("  inputs", _names(part["inputs"])), ("  outputs", _names(part["outputs"]))]
        if name in engine["matmuls"]:
            rows.append(("  matmuls", described(engine["matmuls"][name])))
        if engine["operators"][name]:
            rows.append(("  operators", _counts(engine["operators"][name])))
    for name, each in engine["drafters"].items():
        title, origin = method_named(each["method"]).title, each["part"]["origin"]
        rows += [(f"drafter {name}", f"{origin['id']} ({title})"), ("  revision", origin["revision"][:16])]
    rows += [
        (f"kernel {kernel['op']}", _kernel(kernel)) if "op" in kernel else ("CPU kernels", _cpu_kernels(kernel))
        for kernel in engine["kernels"]
    ]
    if library := engine["plugin_library"]:
        platform = f"{library['machine']} and {', '.join(library['gpus'])}"
        rows.append(("plugin library", f"{platform}, {size(library['bytes'])}, by {library['compiler']}"))
    rows += [(name, size(entry["size"])) for name, entry in engine["files"].items()]
    return rows


def _speed(content: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return rows on the speed estimate of a report, if it has one."""
    from ..resources.speed.page import speed_rows
    from ..resources.speed.round_estimate import SpeedEstimate

    found = SpeedEstimate.of_report(content)
    return [*speed_rows(found)] if found else []


def _precision(table: dict[str, str]) -> list[tuple[str, Any]]:
    """Return the recipe and, if it mixes types, a row for each part and its type."""
    from ..precision.recipes import rows_of

    (_, recipe), *types = rows_of(table)
    rows: list[tuple[str, Any]] = [("precision", recipe)]
    if len({kind for _, kind in types}) > 1:
        rows += [(f"  {name}", kind) for name, kind in types]
    return rows


def _plan(part: dict[str, Any]) -> list[tuple[str, Any]]:
    plan = part["plan"]
    rows = [
        (
            f"  profile {index}",
            f"{profile['name']}: rows {_range(profile['rows'])}, columns {_range(profile['columns'])}, "
            f"emitted {_range(profile['emitted'])}"
            + (f", positions {_range(profile['positions'])}" if profile["positions"] else ""),
        )
        for index, profile in enumerate(plan["profiles"])
    ]
    rows += [("  plugins", _counts(plan["plugins"]) or "none"), ("  layers", _counts(plan["layers"]))]
    for title, names in (("  input", part["inputs"]), ("  output", part["outputs"])):
        tensors = [tensor for tensor in plan["tensors"] if tensor["name"] in names]
        caches = [tensor for tensor in tensors if is_cache(tensor["name"])]
        rows += [(title, f"{tensor['name']} {_type(tensor)}") for tensor in tensors if tensor not in caches]
        counts = Counter(map(_type, caches))
        rows += [(title, f"{count} caches {kind}") for kind, count in counts.items()]
    return rows


def _type(tensor: dict[str, Any]) -> str:
    return f"{tensor['dtype']} [{', '.join('?' if each < 0 else str(each) for each in tensor['shape'])}]"


def _range(sizes: list[int]) -> str:
    minimum, usual, maximum = sizes
    return (
        str(maximum)
        if minimum == maximum
        else f"{minimum} to {maximum}" + (f" (usually {usual})" if usual != maximum else "")
    )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in Counter(counts).most_common())


def _kernel(kernel: dict[str, Any]) -> str:
    usage = [
        f"{entry}: {use['registers']} registers, {size(use['shared_bytes'])} shared"
        + (f", {size(use['spill_bytes'])} spilled" if use["spill_bytes"] else "")
        for entry, use in kernel["usage"].items()
    ]
    return f"{kernel['sm']}, {size(kernel['bytes'])}" + (f"; {'; '.join(usage)}" if usage else "")


def _cpu_kernels(library: dict[str, Any]) -> str:
    runs = f"run here with {library['instructions']}" if library["instructions"] else library["why"]
    return f"{library['machine']}, {size(library['bytes'])}, by {library['compiler']}; {runs}"


def _names(names: list[str]) -> str:
    """Join names in a line; caches are counted, not listed."""
    caches = [name for name in names if is_cache(name)]
    return ", ".join(name for name in names if name not in caches) + (f", {len(caches)} caches" if caches else "")
