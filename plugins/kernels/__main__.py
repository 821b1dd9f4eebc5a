"""``python -m peagle.plugins.kernels``: compile every kernel for every GPU target into the package; print a table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import PeagleError
from .compile import Cubin, compile_nvcc
from .pack import write_pack
from .sources import TARGETS, kernel_ops


def usage_table(cubins: Sequence[Cubin]) -> str:
    """Return a Markdown table of ptxas statistics: registers, shared memory and spills by entry point."""
    targets = sorted({cubin.sm for cubin in cubins})
    cells = {(entry, cubin.sm): usage for cubin in cubins for entry, usage in cubin.usage.items()}
    lines = ["| entry point | " + " | ".join(f"sm_{sm}" for sm in targets) + " |", "|---|" + "---|" * len(targets)]
    for entry in dict.fromkeys(entry for entry, _ in cells):
        row = [cells[entry, sm] for sm in targets]
        texts = [f"{u.registers} registers, {u.shared_bytes} B shared, {u.spill_bytes} B spilled" for u in row]
        lines.append(f"| `{entry}` | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def main() -> int:
    """Fill ``packed/`` (or the folder named on the command line); return the exit status."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().with_name("packed")
    try:
        cubins = [compile_nvcc(op, sm) for op in kernel_ops() for sm in TARGETS]
        write_pack(folder, cubins)
    except PeagleError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    size = sum(len(cubin.code) for cubin in cubins)
    print(usage_table(cubins))
    print(f"{len(cubins)} cubins, {size / 1024:.0f} KiB, by {cubins[0].compiler}: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
