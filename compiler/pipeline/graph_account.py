"""Facts about graphs for manifests and reports, for graphs of this build and of an export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..precision.product_table import BuiltProduct, product_table
from ..tensorrt.plan_proof import shortfall_of


@dataclass(frozen=True)
class GraphAccount:
    """Proofs of quantized graphs and other reported facts, by component; ``products`` adds TensorRT's account of plans.

    ``names`` are the names of the kept stages that hold the graphs, ``shared`` the bytes that a component reads
    from the target's file, ``emulated`` the notes on types that the backend emulates, ``calibration`` the source of
    ranges.
    """

    names: Mapping[str, str]
    proofs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    shared: Mapping[str, int] = field(default_factory=dict)
    emulated: tuple[str, ...] = ()
    calibration: Mapping[str, Any] | None = None

    def lead_sentence(self, built: Mapping[str, Sequence[BuiltProduct]]) -> str:
        """Return the first note of reports: fewer weights are computed in a type than stored in it; empty if none."""
        notes = [*self.emulated]
        notes += [shortfall_of(name, record, built.get(name, ())) for name, record in self.proofs.items()]
        return "; ".join(filter(None, notes))

    def notes(self) -> list[str]:
        """Return the notes of the proofs, target first; notes on the drafter name it."""
        return [
            note if name == "target" else f"{name}: {note}"
            for name, record in self.proofs.items()
            for note in record["notes"]
        ]

    def products(self, built: Mapping[str, Sequence[BuiltProduct]]) -> dict[str, Any]:
        """Return the precision section of reports: the proofs, and the matmuls by type."""
        tables = {name: product_table(self.proofs.get(name), built.get(name, ())) for name in self.names}
        report: dict[str, Any] = {"precision": dict(self.proofs)} if self.proofs else {}
        return report | {"matmuls": {name: table for name, table in tables.items() if table}}
