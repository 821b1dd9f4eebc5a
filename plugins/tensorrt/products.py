"""The TensorRT products that build and run plans. All other modules read the table; to add one, add its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TensorRTProduct:
    """A TensorRT product, with everything that the builder and the runtime need to know about it.

    Args:
        name: The name in ``--backend``, in manifests and on PyPI.
        title: The proper name, for sentences.
        module: The Python module.
        extra: The extra of peagle-compile that installs it.
        distributions: The packages that may contain the module.
        oldest: The oldest version, as (major, minor), that has the operators of the graphs.
        sms: SM numbers of the GPUs for which it builds ahead of time, without any of them; empty if it builds only for
            a GPU of this machine, on which it times kernels.
        expert_layer_since: The first major version with a layer for routed experts; None without such a layer.
        has_known_layers: True if the layer types of its networks are known, so that other numbers of them are an error.
        needs_user_allocation: True if a CUDA graph runs its plans only if they allocate no memory themselves.
        needs_link: True if its parser opens a library under a name that its wheel may lack.
    """

    name: str
    title: str
    module: str
    extra: str
    distributions: tuple[str, ...]
    oldest: tuple[int, int]
    sms: tuple[int, ...] = ()
    expert_layer_since: int | None = None
    has_known_layers: bool = False
    needs_user_allocation: bool = False
    needs_link: bool = False

    @property
    def builds_ahead(self) -> bool:
        """True if it builds ahead of time: for GPUs that this machine need not have, and without timing kernels."""
        return bool(self.sms)

    @property
    def since(self) -> str:
        """The oldest version in words."""
        return ".".join(map(str, self.oldest))

    def supports(self, sm: int) -> bool:
        """Return True if a GPU of ``sm`` (``120``) can run its plans."""
        return not self.sms or sm in self.sms

    def has_expert_layer(self, version: str = "") -> bool:
        """Return True if a version of it has a layer for routed experts; without ``version``, the newest one."""
        if self.expert_layer_since is None:
            return False
        return not version or int(version.partition(".")[0]) >= self.expert_layer_since


FULL_TENSORRT = TensorRTProduct(
    "tensorrt",
    "TensorRT",
    module="tensorrt",
    extra="tensorrt",
    distributions=("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
    oldest=(10, 15),
    expert_layer_since=11,
)
TENSORRT_RTX = TensorRTProduct(
    "tensorrt-rtx",
    "TensorRT-RTX",
    module="tensorrt_rtx",
    extra="rtx",
    distributions=("tensorrt-rtx",),
    oldest=(1, 7),
    # ComputeCapability values of TensorRT-RTX 1.7, without 75, which this project's kernels do not support.
    sms=(80, 86, 89, 120, 121),
    has_known_layers=True,
    needs_user_allocation=True,
    needs_link=True,
)

# In display order.
PRODUCTS: Mapping[str, TensorRTProduct] = {each.name: each for each in (FULL_TENSORRT, TENSORRT_RTX)}
