"""Report of a build: time and memory of its phases, sizes, precision, choice of K."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ....engines.folder.manifest import Manifest
from ...precision.recipes import MULTIPLIED, STORED, lead_sentence
from ...resources.speed.round_estimate import SPEED, SpeedEstimate
from ...store.phase_clock import Phases
from ..choose_k import KChoice
from ..graph_account import GraphAccount
from ..plan_stages import Plans
from .engine_contents import PASS_BYTES
from .report_html import report_html


@dataclass(frozen=True)
class BuildReport:
    """The facts of a build's report; ``sizes`` are bytes in the engine, by component.

    ``choice`` is None if K was given or assumed, ``speed`` if there is no device to estimate for. ``wide`` is the type
    of everything that is not quantized. ``pass_bytes`` are the bytes of weights that passes of the target over 1, 2,
    ... columns read.
    """

    manifest: Manifest
    phases: Phases
    sizes: Mapping[str, int]
    choice: KChoice | None
    warnings: Sequence[str]
    graphs: GraphAccount
    plans: Plans | None
    wide: str
    speed: SpeedEstimate | None = None
    pass_bytes: Sequence[int] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the content of ``build_report.json``.

        Time and memory of plans are those of their build, even if an earlier run built them.
        """
        plans = self.plans.by_component if self.plans else {}
        first = lead_sentence(self.manifest.precision)
        report: dict[str, Any] = ({MULTIPLIED: first} if first else {}) | {
            "product_version": self.manifest.product_version,
            "phases": self.phases.done,
            "bytes": dict(self.sizes),
            "shared_bytes": dict(self.graphs.shared),
            "graphs": dict(self.graphs.names),
            "num_speculative_tokens": self.manifest.speculation.num_speculative_tokens,
            "warnings": list(self.warnings),
            "wide": self.wide,
        }
        report |= {name: kind for name, kind in self.manifest.precision.items() if name == STORED}
        if self.choice:
            report["choose_k"] = {"speedup": round(self.choice.speedup, 3), **asdict(self.choice)}
        if self.speed:
            report[SPEED] = self.speed.as_json()
        if self.pass_bytes:
            report[PASS_BYTES] = list(self.pass_bytes)
        report |= self.graphs.products(self.plans.products() if self.plans else {})
        if self.graphs.calibration:
            report["calibration"] = dict(self.graphs.calibration)
        if plans:
            report["plans"] = {
                name: {"seconds": round(plan.facts.seconds, 3), "peak_rss_bytes": plan.facts.peak_rss_bytes}
                for name, plan in plans.items()
            }
        return report

    def as_html(self, title: str) -> str:
        """Return the content of ``build_report.html``."""
        return report_html(self.as_json(), self.manifest, title)
