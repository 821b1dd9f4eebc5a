"""What manifests and reports say of graphs, whether they were made here or in an export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..precision.product_table import BuiltProduct, product_table
from ..tensorrt.plan_proof import shortfall_of


@dataclass(frozen=True)
class GraphAccount:
    """The proofs of quantized graphs, and what else is told, by half; ``products`` take TensorRT's account of plans.

    ``names`` are those of the kept steps that hold them, ``shared`` the bytes that a half reads from the target's file,
    ``emulated`` what is said of types that the backend only rounds to, ``calibration`` where ranges came from.
    """

    names: Mapping[str, str]
    proofs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    shared: Mapping[str, int] = field(default_factory=dict)
    emulated: tuple[str, ...] = ()
    calibration: Mapping[str, Any] | None = None

    def lead_sentence(self, built: Mapping[str, Sequence[BuiltProduct]]) -> str:
        """What is said before all else: less is multiplied in the recipe's type than is stored in it; else nothing."""
        said = [*self.emulated]
        said += [shortfall_of(name, record, built.get(name, ())) for name, record in self.proofs.items()]
        return "; ".join(filter(None, said))

    def notes(self) -> list[str]:
        """List what the proofs have to tell, half by half; of the drafter's it is said whose they are."""
        return [
            note if name == "target" else f"{name}: {note}"
            for name, record in self.proofs.items()
            for note in record["notes"]
        ]

    def products(self, built: Mapping[str, Sequence[BuiltProduct]]) -> dict[str, Any]:
        """Return what reports say of precision: the proofs, and the products by type."""
        tables = {name: product_table(self.proofs.get(name), built.get(name, ())) for name in self.names}
        report: dict[str, Any] = {"precision": dict(self.proofs)} if self.proofs else {}
        return report | {"matmuls": {name: table for name, table in tables.items() if table}}
