"""Basic blocks of a kernel, and the order in which a machine should run them so that threads meet again.

Every thread has a program counter of its own. The scheduler always runs the first block in which threads stand, in an
order in which both sides of a branch precede the place where they meet and a loop precedes what follows it. The order
decides how many threads run together and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from .errors import UnsupportedPtxError
from .syntax import Guard, Instruction, Kernel, Label, Symbol

# Instructions that stand alone in their block, because a thread may wait in front of them.
WAITING = ("bar.", "barrier.", "shfl.", "redux.", "vote.")


@dataclass
class Block:
    """Instructions that run one after the other, then the branch: to ``target`` if ``guard`` holds, else to ``next``.

    ``target`` and ``next`` are None where the thread ends.
    """

    body: list[Instruction] = field(default_factory=list)
    line: int = 0
    guard: Guard | None = None
    target: int | None = None
    next: int | None = None

    @property
    def waits(self) -> bool:
        """True if the block is one instruction that waits for other threads."""
        return len(self.body) == 1 and self.body[0].opcode.startswith(WAITING)


def blocks_of(kernel: Kernel) -> list[Block]:
    """Return the basic blocks in the order to run them; the first is the entry."""
    blocks = _cut(kernel)
    edges = {i: [j for j in (block.target, block.next) if j is not None] for i, block in enumerate(blocks)}
    order = _order(reachable(edges), edges, 0)
    place = {old: new for new, old in enumerate(order)}
    return [
        replace(
            blocks[old],
            target=None if blocks[old].target is None else place[blocks[old].target or 0],
            next=None if blocks[old].next is None else place[blocks[old].next or 0],
        )
        for old in order
    ]


def _cut(kernel: Kernel) -> list[Block]:
    """Return the blocks in the order of the text. A guarded instruction becomes a branch around it."""
    blocks, labels, jumps = [Block()], dict[str, int](), list[tuple[int, str]]()

    def fresh(line: int) -> Block:
        """Return an empty block that the last one falls through to, or the last one if it is empty."""
        if not blocks[-1].body:
            return blocks[-1]
        blocks[-1].next = len(blocks)
        blocks.append(Block(line=line))
        return blocks[-1]

    def ended(block: Block, line: int, after: int | None) -> None:
        block.next, block.line = after, block.line or line
        blocks.append(Block())

    for item in kernel.body:
        if isinstance(item, Label):
            fresh(item.line)
            labels[item.name] = len(blocks) - 1
            continue
        base = item.opcode
        if base in ("bra", "bra.uni"):
            if len(item.operands) != 1 or not isinstance(item.operands[0], Symbol):
                raise UnsupportedPtxError(f"{kernel.name}, line {item.line}: a branch to {item.operands}")
            block = blocks[-1]
            jumps.append((len(blocks) - 1, item.operands[0].name))
            block.guard = item.guard
            ended(block, item.line, len(blocks) if item.guard else None)
        elif base in ("ret", "exit") and item.guard is None:
            blocks[-1].target = None
            ended(blocks[-1], item.line, None)
        elif item.guard is not None:
            block = blocks[-1]
            block.guard, block.target = Guard(item.guard.register, not item.guard.negated), len(blocks) + 1
            ended(block, item.line, len(blocks))
            if base in ("ret", "exit"):
                ended(blocks[-1], item.line, None)
            else:
                blocks[-1].body.append(replace(item, guard=None))
                ended(blocks[-1], item.line, len(blocks))
        elif base.startswith(WAITING):
            fresh(item.line).body.append(item)
            ended(blocks[-1], item.line, len(blocks))
        else:
            blocks[-1].line = blocks[-1].line or item.line
            blocks[-1].body.append(item)
    for index, name in jumps:
        if name not in labels:
            raise UnsupportedPtxError(f"{kernel.name}: no label {name}")
        blocks[index].target = labels[name]
        if blocks[index].guard is None:
            blocks[index].next, blocks[index].target = labels[name], None
    return blocks


def reachable(edges: Mapping[int, list[int]]) -> set[int]:
    """Return the blocks that can be reached from the first."""
    seen, stack = {0}, [0]
    while stack:
        for other in edges[stack.pop()]:
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return seen


def _order(nodes: Collection[int], edges: Mapping[int, list[int]], entry: int) -> list[int]:
    """Sort so that edges point forward; a loop lies together, sorted in the same way without the edges to its head."""
    order: list[int] = []
    for group in components(nodes, edges):
        if len(group) == 1:
            order += group
            continue
        inside = set(group)
        outer = set(nodes) - inside
        heads = [n for n in group if n == entry or any(n in edges[o] for o in outer)] or group[:1]
        head = min(heads)
        cut = {n: [t for t in edges[n] if t in inside and t != head] for n in group}
        order += _order(group, cut, head)
    return order


def components(nodes: Collection[int], edges: Mapping[int, list[int]]) -> list[list[int]]:
    """Return the strongly connected components, in an order in which edges point forward (Tarjan)."""
    inside = set(nodes)
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    found: list[list[int]] = []
    for root in sorted(inside):
        if root in index:
            continue
        work = [(root, iter([t for t in edges[root] if t in inside]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    work.append((other, iter([t for t in edges[other] if t in inside])))
                    break
                if other in stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    found.append(sorted(stack[at:]))
                    del stack[at:]
    return found[::-1]
