"""Compares a graph's inputs and outputs with the manifest.

Memory is allocated by the manifest and written by the graph, so nothing may run if they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...plugins import graph_contract as contract
from ...plugins.errors import EnvironmentProblem
from .checks import REBUILD
from .records import Part, Shapes

_NAMES = {
    "target": (contract.TARGET_INPUTS, contract.TARGET_OUTPUTS),
    "drafter": (contract.DRAFTER_INPUTS, contract.DRAFTER_OUTPUTS),
    "autoregressive": (contract.AUTOREGRESSIVE_INPUTS, contract.AUTOREGRESSIVE_OUTPUTS),
}


@dataclass(frozen=True)
class FoundTensor:
    """The type and dims of an input or output; None is a dim that varies or is unknown."""

    dtype: str
    dims: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join('*' if dim is None else str(dim) for dim in self.dims)}]"


Tensors = Mapping[str, FoundTensor]


def check_graph(
    path: Path, component: str, part: Part, shapes: Shapes, wide: str, inputs: Tensors, outputs: Tensors
) -> None:
    """Raise ``EnvironmentProblem`` if the tensors of a graph or plan differ from the contract and the manifest's sizes.

    ``wide`` is the type of features and logits, and the default type of caches.
    """
    expected_inputs, expected_outputs = _expected(component, part, shapes, wide)
    for kind, listed, expected, found in (
        ("inputs", part.inputs, expected_inputs, inputs),
        ("outputs", part.outputs, expected_outputs, outputs),
    ):
        why = _difference(kind, listed, expected, found)
        if why:
            raise EnvironmentProblem(f"{path} does not match the manifest's {component}", why=why, fix=REBUILD)


def _expected(component: str, part: Part, shapes: Shapes, wide: str) -> tuple[Tensors, Tensors]:
    sizes = {
        "F": len(shapes.taps) * shapes.hidden_size,
        "V": shapes.vocab_size,
        "Vd": shapes.draft_vocab_size,
    }

    def tensor(name: str) -> FoundTensor:
        kind = contract.TENSORS[name]
        dtype = wide if kind.dtype == contract.WIDE else kind.dtype
        return FoundTensor(dtype, tuple(sizes.get(dim) for dim in kind.dims))

    pairs = zip(contract.cache_names(len(part.caches)), (*part.caches, *part.caches), strict=True)
    caches = {
        name: FoundTensor(cache.dtype or wide, (None, cache.heads, shapes.cache_length, cache.width))
        for name, cache in pairs
    }
    kind = "autoregressive" if part.is_autoregressive else component
    inputs, outputs = ({name: tensor(name) for name in names} for names in _NAMES[kind])
    tree_input = contract.SKIPPED if part.makes_paths else contract.ANCESTORS
    inputs |= {name: tensor(name) for name in (tree_input,) if part.verifies_trees}
    inputs |= {name: tensor(name) for name in (contract.POSITIONS,) if part.reads_positions}
    outputs |= {name: tensor(name) for name in (contract.PATH,) if part.makes_paths}
    outputs |= {name: tensor(name) for name in contract.CANDIDATES if part.names_candidates}
    if not shapes.taps:  # no drafter reads auxiliary features
        outputs.pop("aux_hidden", None)
    return inputs | caches, outputs | {contract.written(name): cache for name, cache in caches.items()}


def _difference(kind: str, listed: tuple[str, ...], expected: Tensors, found: Tensors) -> str:
    """Return the first difference between the expected and the found tensors, or an empty string."""
    names = sorted(found)
    if sorted(expected) != names or sorted(listed) != names:
        odd = sorted({*expected, *listed, *found} - (expected.keys() & {*listed} & found.keys()))
        return f"the graph's {kind} differ from the manifest: {', '.join(odd[:5]) or 'one is listed twice'}"
    for name, tensor in found.items():
        if not _fits(tensor, expected[name]):
            return f"{name} is {tensor}, but the manifest declares {expected[name]}"
    return ""


def _fits(found: FoundTensor, expected: FoundTensor) -> bool:
    """Return True if both agree, as far as both are known."""
    return (
        found.dtype == expected.dtype
        and len(found.dims) == len(expected.dims)
        and all(a == b or a is None or b is None for a, b in zip(found.dims, expected.dims, strict=True))
    )
