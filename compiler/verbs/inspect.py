"""``peagle-compile inspect``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..console import columns, emit, interruptible, size
from .common import EngineFolder, Json


@interruptible("nothing was changed")
def inspect(
    engine: EngineFolder,
    hashes: Annotated[bool, typer.Option(help="Check the hash of every file.")] = True,
    as_json: Json = False,
) -> None:
    """Show what an engine folder holds, after checking that it is whole.

    Example: peagle-compile inspect demo-engine
    """
    from ..inspect import inspect_engine

    found = inspect_engine(engine, hashes=hashes)
    if as_json:
        emit(found)
    else:
        print(columns(_rows(found)))


def _rows(found: dict[str, Any]) -> list[tuple[str, Any]]:
    speculation, shapes = found["speculation"], found["shapes"]
    rows: list[tuple[str, Any]] = [
        ("engine", f"{found['engine']}, {size(found['bytes'])}, made by peagle-compile {found['product_version']}"),
        ("backend", f"{found['backend']['name']} {found['backend']['versions'].get(found['backend']['name'], '')}"),
        ("lowering", found["backend"]["lowering"]),
        ("precision", found["precision"].get("recipe", "")),
        ("drafts per round", f"{speculation['num_speculative_tokens']} (trained for {speculation['trained_depth']})"),
        ("max_seq_len", f"{shapes['max_seq_len']} (caches hold {shapes['cache_length']})"),
        ("vocabulary", f"{shapes['vocab_size']} (drafter {shapes['draft_vocab_size']})"),
        ("taps", ", ".join(map(str, shapes["taps"]))),
        ("evidence", "; ".join(f"{item['level']}: {item['how']}" for item in found["evidence"]) or "none stated"),
        ("reports", ", ".join(found["reports"]) or "none: `peagle-compile verify` writes verify.json"),
    ]
    for name in ("target", "drafter"):
        part = found[name]
        rows += [
            (name, f"{part['origin']['id']} ({part['origin']['architecture']}), {len(part['caches'])} layers"),
            ("  revision", part["origin"]["revision"][:16]),
            ("  inputs", _names(part["inputs"])),
            ("  outputs", _names(part["outputs"])),
        ]
        if found["operators"][name]:
            rows.append(("  operators", ", ".join(f"{op} {count}" for op, count in found["operators"][name].items())))
    rows += [(name, size(entry["size"])) for name, entry in found["files"].items()]
    return rows


def _names(names: list[str]) -> str:
    """Cache names are counted, not listed."""
    caches = [name for name in names if "_cache." in name]
    return ", ".join(name for name in names if name not in caches) + (f", {len(caches)} caches" if caches else "")
