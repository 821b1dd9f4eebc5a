"""Table of an engine's matmuls by type, for reports and for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...plugins.number_formats import format_of_type
from ...plugins.number_types import BFLOAT16, E4M3, E8M0, FLOAT16, FLOAT32, INT4, INT8, UINT8

# Other types carry no information about a matmul.
BITS = {kind.name: kind.bits for kind in (FLOAT32, FLOAT16, BFLOAT16, E4M3, E8M0, INT8, UINT8, INT4)}

_TITLES = {
    "graph": "according to the lowered graph",
    "network": "according to TensorRT's parser",
    "plan": "according to the plan",
    "inspector": "according to TensorRT's inspector",
}


@dataclass(frozen=True)
class BuiltProduct:
    """A matmul with ``numbers`` weight values, from the node ``layer``, as TensorRT runs it.

    Types are lowercase ONNX names. ``computed`` is the type of both factors in the multiplication. ``unpacked``: a
    separate kernel dequantizes the weights to memory before every matmul. ``by`` is the source: ``network`` (as
    parsed), ``plan`` (its programs) or ``inspector``.
    """

    layer: str
    weight: str
    stored: str
    computed: str
    numbers: int
    unpacked: bool = False
    by: str = "network"


def bytes_of(stored: str, numbers: int) -> int:
    """Return the bytes of so many values in a type; codes of GGUF blocks may have any number of bits (``int6``)."""
    bits = stored.removeprefix("int")
    return numbers * BITS.get(stored, int(bits) if bits.isdecimal() else 8) // 8


def product_table(precision: Mapping[str, Any] | None, built: Sequence[BuiltProduct]) -> dict[str, Any] | None:
    """Return all matmuls of one graph and the totals of each type; None if unknown.

    ``built`` comes from TensorRT. Without it, the graph serves, which is known only for quantized graphs.
    """
    graph = {row["weight"]: row for row in (precision or {}).get("matmuls", ())}
    rows = [asdict(product) | _promised(graph.get(product.weight)) for product in built]
    rows = rows or [_of_graph(row) for row in graph.values()]
    if not rows:
        return None
    return {"total": len(rows), "numbers": _numbers(rows), "bytes": _bytes(rows), "types": _types(rows), "list": rows}


def described(table: Mapping[str, Any]) -> str:
    """Return the table in one line: ``196: 168 fp8 (97.1% of the weights), 28 bf16 (2.9%); according to the plan``."""
    parts, of = [], " of the weights"
    for total in table["types"]:
        stored, computed = (_short(total[kind]) for kind in ("stored", "computed"))
        stored = total.get("blocks", stored)
        how = "" if stored == computed else f" computed in {computed}"
        how = f" dequantized to {computed} before every matmul" if total["unpacked"] else how
        how = f" emulated in {computed}" if total.get("emulated") else how
        parts.append(f"{total['matmuls']} {stored}{how} ({total['share']:.1%}{of})")
        of = ""
    sources = {row["by"] for row in table["list"]}
    return f"{table['total']}: {', '.join(parts)}; {', '.join(_TITLES[by] for by in _TITLES if by in sources)}"


def _short(name: str) -> str:
    """Return the name of the number format with this element type, else the type's."""
    found = format_of_type(name)
    return found.name if found else name


def _of_graph(row: Mapping[str, Any]) -> dict[str, Any]:
    rows_of_graph = {
        name: row[name]
        for name in ("weight", "stored", "blocks", "computed", "emulates", "numbers", "role", "why")
        if name in row
    }
    return rows_of_graph | {"unpacked": False, "by": "graph"}


def _promised(graph: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the graph's data for the same weight, to compare with the rest of the row."""
    if graph is None:
        return {}
    promised = {name: graph[name] for name in ("role", "why", "blocks") if graph.get(name)}
    return {"graph": {"stored": graph["stored"], "computed": graph["computed"]}, **promised}


def _types(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the totals of each type, most weights first.

    ``share`` is relative to all multiplied weights, counted in values. A weight counts once, in the widest type of its
    matmuls.
    """
    groups: dict[tuple[str, str, bool, bool, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        kind = (row["stored"], row["computed"], row["unpacked"], "emulates" in row, row.get("blocks", ""))
        groups.setdefault(kind, []).append(row)
    num_products, widest = max(_numbers(rows), 1), _widest_rows(rows)
    widest_rows = {kind: [row for row in group if widest[row["weight"]] is row] for kind, group in groups.items()}
    totals = [
        {
            "stored": kind[0],
            "computed": kind[1],
            "unpacked": kind[2],
            **({"emulated": True} if kind[3] else {}),
            **({"blocks": kind[4]} if kind[4] else {}),
            "matmuls": len(group),
            "numbers": _numbers(widest_rows[kind]),
            "bytes": _bytes(widest_rows[kind]),
            "share": round(_numbers(widest_rows[kind]) / num_products, 6),
        }
        for kind, group in groups.items()
    ]
    return sorted(totals, key=lambda total: -int(str(total["numbers"])))


def _numbers(rows: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(row["numbers"]) for row in _widest_rows(rows).values())


def _bytes(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the stored bytes of the weights in ``rows``, without scales."""
    return sum(bytes_of(row["stored"], row["numbers"]) for row in _widest_rows(rows).values())


def _widest_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the widest row of each weight, by name; a weight multiplied twice counts once."""
    widest: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        known = widest.get(row["weight"])
        if known is None or _width(known) < _width(row):
            widest[row["weight"]] = row
    return widest


def _width(row: Mapping[str, Any]) -> tuple[int, bool, int]:
    return bytes_of(row["stored"], 8), row["unpacked"], bytes_of(row["computed"], 8)
