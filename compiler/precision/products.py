"""The products of an engine by type, as the build report lists them and as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...plugins.numbers import BY_NAME
from ..tensorrt.matmuls import BuiltMatmul, bytes_of

_SAYS = {
    "graph": "as the lowered graph has them",
    "network": "as TensorRT parsed them",
    "plan": "as the plan itself has them",
    "inspector": "as TensorRT's inspector has them",
}


def matmul_table(precision: Mapping[str, Any] | None, built: Sequence[BuiltMatmul]) -> dict[str, Any] | None:
    """Every product with weights of one graph and the totals of each type; None where nothing is known.

    ``built`` is TensorRT's account. Without it the graph's own serves, which only graphs with narrow weights have.
    """
    graph = {each["weight"]: each for each in (precision or {}).get("matmuls", ())}
    rows = [asdict(each) | _promised(graph.get(each.weight)) for each in built]
    rows = rows or [_of_graph(each) for each in graph.values()]
    if not rows:
        return None
    return {"total": len(rows), "numbers": _numbers(rows), "bytes": _bytes(rows), "types": _types(rows), "list": rows}


def described(table: Mapping[str, Any]) -> str:
    """In one line: ``196: 168 fp8 (97.1% of the weights), 28 bf16 (2.9%); as the plan itself has them``."""
    parts, of = [], " of the weights"
    for each in table["types"]:
        stored, computed = (_short(each[kind]) for kind in ("stored", "computed"))
        how = "" if stored == computed else f" multiplied in {computed}"
        how = f" unpacked to {computed} before every product" if each["unpacked"] else how
        parts.append(f"{each['matmuls']} {stored}{how} ({each['share']:.1%}{of})")
        of = ""
    said = {row["by"] for row in table["list"]}
    return f"{table['total']}: {', '.join(parts)}; {', '.join(_SAYS[by] for by in _SAYS if by in said)}"


def _short(name: str) -> str:
    """The word that ``--precision`` has for a type, else its name."""
    return BY_NAME[name].precision or name if name in BY_NAME else name


def _of_graph(each: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: each[name] for name in ("weight", "stored", "computed", "numbers", "role", "why") if name in each}
    return kept | {"unpacked": False, "by": "graph"}


def _promised(graph: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the graph says of the same weight, to be held against the rest of the row."""
    if graph is None:
        return {}
    kept = {name: graph[name] for name in ("role", "why") if graph.get(name)}
    return {"graph": {"stored": graph["stored"], "computed": graph["computed"]}, **kept}


def _types(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Totals, most weights first. ``share`` is of all weights that are multiplied, counted as numbers.

    A weight counts once, as the widest of its products has it.
    """
    groups: dict[tuple[str, str, bool], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["stored"], row["computed"], row["unpacked"]), []).append(row)
    whole, widest = max(_numbers(rows), 1), _once(rows)
    own = {kind: [row for row in group if widest[row["weight"]] is row] for kind, group in groups.items()}
    totals = [
        {
            "stored": kind[0],
            "computed": kind[1],
            "unpacked": kind[2],
            "matmuls": len(group),
            "numbers": _numbers(own[kind]),
            "bytes": _bytes(own[kind]),
            "share": round(_numbers(own[kind]) / whole, 6),
        }
        for kind, group in groups.items()
    ]
    return sorted(totals, key=lambda total: -int(str(total["numbers"])))


def _numbers(rows: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(row["numbers"]) for row in _once(rows).values())


def _bytes(rows: Sequence[Mapping[str, Any]]) -> int:
    """As stored, without scales."""
    return sum(bytes_of(row["stored"], row["numbers"]) for row in _once(rows).values())


def _once(rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """By weight, the widest of its rows: one that is multiplied twice is one."""
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        known = found.get(row["weight"])
        if known is None or _width(known) < _width(row):
            found[row["weight"]] = row
    return found


def _width(row: Mapping[str, Any]) -> tuple[int, bool, int]:
    return bytes_of(row["stored"], 8), row["unpacked"], bytes_of(row["computed"], 8)
