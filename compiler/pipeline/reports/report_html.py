"""Build report as a self-contained HTML page: no scripts, no external resources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ....engines.folder.manifest import Manifest
from ...console.printing import size
from ...precision.product_table import described
from ...precision.recipes import STORED, lead_sentence, rows_of
from ...resources.speed.page import speed_rows
from ...resources.speed.round_estimate import SPEED, SpeedEstimate
from .html_page import html_page, html_table
from .line_chart import line_chart

_UNNAMED = "other"


def report_html(report: Mapping[str, Any], manifest: Manifest, title: str) -> str:
    """Return the page for the content of ``build_report.json`` and the manifest."""
    parts = [
        *_first(manifest),
        f"<p>peagle-compile {escape(str(report['product_version']))}, "
        f"{escape(str(report['num_speculative_tokens'] or 'no'))} drafts per round</p>",
        *_warnings(report["warnings"]),
        "<h2>Engine</h2>",
        html_table((), _engine(manifest), "facts"),
        "<h2>Precision</h2>",
        html_table(("part", "type"), _types(report, manifest.precision)),
        *_calibration(report.get("calibration") or {}),
        *_products(report.get("matmuls") or {}),
        *_losses(report.get("precision") or {}),
        *_speed(report.get("choose_k") or {}),
        *_estimate(report.get(SPEED) or {}),
        "<h2>Time and memory</h2>",
        html_table(("phase", "seconds", "peak memory so far", ""), [_phase(phase) for phase in report["phases"]]),
        *_plans(report.get("plans") or {}),
        "<h2>Sizes</h2>",
        html_table(("part", "bytes", ""), [(name, count, size(count)) for name, count in report["bytes"].items()]),
    ]
    return html_page(title, parts)


def _first(manifest: Manifest) -> list[str]:
    words = lead_sentence(manifest.precision)
    return [f"<p><strong>{escape(words)}</strong></p>"] if words else []


def _warnings(warnings: Sequence[str]) -> list[str]:
    if not warnings:
        return []
    return ["<h2>Warnings</h2>", "<ul>", *(f"<li>{escape(str(warning))}</li>" for warning in warnings), "</ul>"]


def _engine(manifest: Manifest) -> list[tuple[str, Any]]:
    """Return rows on the sources of the engine, its backend, and the evidence for it."""
    rows: list[tuple[str, Any]] = []
    for name, part in manifest.parts.items():
        rows.append((name, f"{part.origin.id} ({part.origin.architecture})"))
        rows.append((f"{name} fingerprint", part.origin.revision))
    rows += [("weights from", manifest.precision[STORED])] if STORED in manifest.precision else []
    backend = manifest.backend
    rows.append(("backend", f"{backend.name} {backend.versions.get(backend.name, '')}, lowered for {backend.lowering}"))
    rows += [("GPUs", ", ".join(backend.gpus))] if backend.gpus else []
    rows.append(("maximum sequence length", manifest.shapes.max_seq_len))
    return rows + ([(f"evidence: {e.level}", e.how) for e in manifest.evidence] or [("evidence", "none")])


def _types(report: Mapping[str, Any], table: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return rows of types; "everything else" is what no other row names."""
    wide = [("everything else", report["wide"])] if "wide" in report else []
    rows = dict(rows_of(table))
    excluded = rows.pop("exclude", "")
    return [*rows.items(), *wide, *([("excluded", excluded)] if excluded else [])]


def _calibration(facts: Mapping[str, Any]) -> Iterable[str]:
    if not facts:
        return
    method = ", ".join(f"{name} {value}" if name != "name" else str(value) for name, value in facts["method"].items())
    rows = [("dataset", facts["dataset"]), ("token digest", facts["samples"])]
    rows += [("samples", facts["num_samples"]), ("tokens", facts["num_tokens"]), ("method", method)]
    rows += [("computed on", facts["device"])] if "device" in facts else []
    yield "<h2>Calibration</h2>"
    yield html_table((), rows, "facts")
    yield from _saturation(facts.get("saturation") or {})
    yield from _lm_head(facts.get("lm_head") or ())
    yield from _experts(facts.get("experts") or {})


def _lm_head(losses: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Yield the measured loss of an LM head in each format."""
    if losses:
        rows = [(each["kind"], f"{each['divergence']:.2g}", f"{each['changed']:.1%}") for each in losses]
        yield html_table(("lm_head in", "divergence, nats per token", "most likely token changed"), rows)


def _saturation(found: Mapping[str, Any]) -> Iterable[str]:
    """Yield the values of the samples beyond the ranges, and the difference of ranges between halves of the samples."""
    if not found:
        return
    halves = found["halves"]
    yield f"<p>Values exceed the calibrated range in {found['clipped']} of {found['inputs']} inputs and caches."
    if halves["inputs"]:
        yield (
            "Between two halves of the samples, the largest values differ by a factor of at most "
            f"{halves['apart']:.3g} ({escape(halves['in'])}); {halves['unsettled']} of {halves['inputs']} inputs "
            f"differ by a factor of more than {halves['limit']:g}."
        )
    yield "</p>"
    if found["worst"]:
        rows = [(each["name"], f"{each['share']:.3%}", f"{each['beyond']:.3g}") for each in found["worst"]]
        yield html_table(("input", "values beyond the range", "largest value / range"), rows)


def _experts(found: Mapping[str, Any]) -> Iterable[str]:
    """Yield the experts that saw few tokens; nothing if there are none."""
    if not found or not found["seldom"]:
        return
    count, fewest = len(found["seldom"]), found["fewer_than"]
    summary_text = (
        f"{count} of {found['experts']} experts saw fewer than {fewest} tokens; {found['unseen']} of these saw none"
    )
    yield f"<details><summary>{summary_text}</summary>"
    rows = [(each["module"], each["expert"], each["tokens"]) for each in found["seldom"]]
    yield html_table(("layer", "expert", "tokens"), rows)
    yield "</details>"


def _speed(choice: Mapping[str, Any]) -> Iterable[str]:
    """Yield the measurements behind the choice of K; nothing if K was given."""
    if not choice:
        return
    yield "<h2>Choice of K</h2>"
    yield f"<p>K = {choice['k']} decodes {choice['speedup']:.2f}x as fast as plain decoding on this machine.</p>"
    names = {"median": "tokens_per_second", "slowest": "slowest", "fastest": "fastest"}
    rates = sorted(choice["rates"], key=lambda rate: int(rate["k"]))
    lines = {name: [(rate["k"], rate[key]) for rate in rates] for name, key in names.items()}
    yield line_chart(lines, "drafts per round (K)", "tokens per second")
    rows = [(rate["k"], *(f"{rate[key]:.1f}" for key in names.values())) for rate in rates]
    yield html_table(("K", "median tokens per second", "slowest", "fastest"), rows, "figures")


def _estimate(content: Mapping[str, Any]) -> Iterable[str]:
    """Yield the speed estimate, next to measured rounds if there are any."""
    if content:
        yield "<h2>Speed estimate</h2>"
        yield html_table((), speed_rows(SpeedEstimate.from_json(content)), "facts")


def _products(tables: Mapping[str, Any]) -> Iterable[str]:
    """Yield a summary of each graph, and its matmuls by role."""
    for component, table in tables.items():
        yield f"<h2>Matmuls of the {escape(component)}</h2>"
        yield f"<p>{escape(described(table))}</p>"
        roles: dict[str, list[Mapping[str, Any]]] = {}
        for row in table["list"]:
            roles.setdefault(row.get("role") or _UNNAMED, []).append(row)
        for role, rows in roles.items():
            yield f"<details><summary>{escape(role)}: {len(rows)}</summary>"
            yield html_table(
                ("weight", "stored in", "computed in", "values", "source", ""), [_row(row) for row in rows]
            )
            yield "</details>"


def _row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    note = "dequantized to memory before every matmul" if row["unpacked"] else row.get("why", "")
    note = note or ("emulated: both operands are rounded to the type before the matmul" if "emulates" in row else "")
    return row["weight"], row["stored"], row["computed"], row["numbers"], row["by"], note


def _losses(precision: Mapping[str, Any]) -> Iterable[str]:
    for component, record in precision.items():
        if losses := record.get("losses"):
            yield f"<h2>Rounding error of the {escape(component)}</h2>"
            yield f"<details open><summary>{len(losses)} tensors, relative error, largest first</summary>"
            worst = sorted(losses.items(), key=lambda item: -item[1])
            yield html_table(("tensor", "error"), [(name, f"{loss:.3%}") for name, loss in worst])
            yield "</details>"


def _phase(phase: Mapping[str, Any]) -> tuple[Any, ...]:
    note = "reused from an earlier build" if phase.get("reused") else ""
    return phase["phase"], f"{phase['seconds']:.1f}", size(phase["peak_rss_bytes"]), note


def _plans(plans: Mapping[str, Any]) -> list[str]:
    rows = [(name, f"{plan['seconds']:.1f}", size(plan["peak_rss_bytes"])) for name, plan in plans.items()]
    return [html_table(("plan", "seconds", "peak memory of its process"), rows)] if rows else []
