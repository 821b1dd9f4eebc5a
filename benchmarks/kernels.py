"""Measure the CUDA kernels on this GPU against the memory traffic they require, and against PyTorch.

    python benchmarks/kernels.py [--quick] [--json figures.json]

Needs an NVIDIA GPU, PyTorch with CUDA, NumPy and cuda-core; this project need not be installed. Every figure is the
median of several replays of a CUDA graph with many consecutive launches, which excludes host time. *cold* cycles
through inputs that exceed the L2 cache, *warm* reads the same input repeatedly.

- **floor**: the time to read the logits of all columns once, at the bandwidth of a device-to-device copy measured in
  this run.
- **PyTorch**: a straightforward implementation without a custom kernel (arg-max, or softmax, sort and a draw, then a
  cumulative product over the matches), also captured in a CUDA graph, on the same inputs and equally cold.
- Compare a call whose floor is below the launch cost with ``launch``, the time of a kernel that does almost nothing.

Routed experts have the sizes of GPT-OSS-120B, in a window of K + 1 tokens; every launch has other experts. Their floor
is the time to read the blocks of the experts that some token has. They are not compared with PyTorch.

Every draft is accepted, which is the most work for a call. Exit status: 3 if this cannot run here, 1 if greedy tokens
differ from PyTorch's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

try:
    import peagle.plugins  # noqa: F401
except ImportError:  # not installed: import the top-level folders as subpackages
    sys.modules["peagle"] = types.ModuleType("peagle")
    sys.modules["peagle"].__path__ = [str(Path(__file__).resolve().parent.parent)]

from peagle.plugins.errors import PeagleError
from peagle.plugins.kernels.launch import Launcher, current_sm
from peagle.plugins.kernels.pack import obtain
from peagle.plugins.ops import OPS

VOCABULARIES = (151_936, 201_088)
DRAFTS = (1, 4, 8, 16)
BATCHES = (1, 8, 64)
DTYPES = ("float16", "bfloat16", "float32")
OF_DRAFTS, OF_EXPERTS = ("AcceptPrefix", "NumbersAt", "PlaceholderDraft"), ("Mxfp4GateUp", "Mxfp4Down")
POLICIES = {"greedy": (0.0, 1.0), "top-p 0.9": (1.0, 0.9)}  # temperature, top_p

WINDOWS = (1, 5, 9, 17, 64)  # tokens of a window that chooses experts
HIDDEN, INNER, EXPERTS, CHOSEN = 2880, 2880, 128, 4  # of GPT-OSS-120B

DEVICE = "cuda"
REPLAYS = 9
MIN_LAUNCHES = 20
MAX_LAUNCHES = 400
MAX_RING_BYTES = 8 << 30

Enqueue = Callable[[int], Any]


@dataclass(frozen=True)
class Spread:
    """Microseconds per launch: median, fastest and slowest of the replays."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:.1f} ({self.least:.1f} .. {self.most:.1f})"


@dataclass(frozen=True)
class Row:
    """One configuration: the project's kernel and PyTorch's version, in microseconds."""

    op: str
    policy: str
    dtype: str
    vocab: int
    k: int
    batch: int
    floor: float
    cold: Spread
    warm: Spread
    torch_cold: Spread | None  # None: PyTorch ran out of memory, unless it is not ``compared``
    compared: bool = True

    @property
    def of_floor(self) -> float:
        return self.cold.median / self.floor

    @property
    def speedup(self) -> float | None:
        return self.torch_cold.median / self.cold.median if self.torch_cold else None


@dataclass(frozen=True)
class Machine:
    """The measured machine; bandwidth counts bytes read and bytes written."""

    gpu: str
    sm: int
    driver: str
    cuda: str
    torch: str
    kernels: str
    l2_mib: float
    copy_gb_per_s: float
    launch_us: float


def timed(enqueue: Enqueue, launches: int) -> Spread:
    """Time one launch with a CUDA graph of ``launches`` launches; ``enqueue(i)`` enqueues the i-th."""
    import torch

    for i in range(min(launches, 3)):  # load code and fill caching allocators outside the capture
        enqueue(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            enqueue(i)
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(REPLAYS):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / launches)
    return Spread(statistics.median(times), min(times), max(times))


class Kernel:
    """A kernel of the project, loaded for this GPU."""

    def __init__(self, name: str) -> None:
        op, sm = OPS[name], current_sm()
        cubin = obtain(op, sm)
        self.compiler = cubin.compiler
        self._launcher = Launcher(op, sm, cubin.code)

    def __call__(self, tensors: Sequence[Any], dims: dict[str, int], dtype: str = "", **attributes: int) -> None:
        """Enqueue on PyTorch's current stream; inputs, then outputs."""
        import torch

        stream = torch.cuda.current_stream().cuda_stream
        self._launcher.launch(stream, [tensor.data_ptr() for tensor in tensors], dims, attributes, dtype)


def bandwidth() -> float:
    """Return the bytes per second, read and written, of a 1 GiB copy within the device."""
    import torch

    source = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    spread = timed(lambda i: target.copy_(source), 8)
    return float(2 * source.numel() / (spread.median * 1e-6))


@dataclass(frozen=True)
class Batch:
    """The inputs of AcceptPrefix except the logits, and its outputs."""

    ids: Any
    lengths: list[Any]  # window_len, draft_len, forced_next
    uniform: Any
    policy: list[Any]  # temperature, top_k, top_p, min_p, tolerance
    outputs: list[Any]
    dims: dict[str, int]

    @staticmethod
    def make(batch: int, k: int, vocab: int, temperature: float, top_p: float) -> Batch:
        import torch

        def full(value: float, dtype: Any) -> Any:
            return torch.full((batch,), value, dtype=dtype, device="cuda")

        i32, i64, f32 = torch.int32, torch.int64, torch.float32
        return Batch(
            ids=torch.randint(vocab, (batch, k + 1), device="cuda"),
            lengths=[full(k + 1, i32), full(k, i32), full(-1, i64)],
            uniform=torch.rand((batch, k + 1), device="cuda"),
            policy=[full(temperature, f32), full(0, i32), full(top_p, f32), full(0, f32), full(0, f32)],
            outputs=[torch.empty((batch, k + 1), dtype=i32, device="cuda"), full(0, i32)],
            dims={"B": batch, "E": k + 1, "S": k + 1, "V": vocab},
        )

    def tensors(self, logits: Any) -> list[Any]:
        return [logits, self.ids, *self.lengths, self.uniform, *self.policy, *self.outputs]


def torch_accept(logits: Any, batch: Batch, temperature: float, top_p: float) -> tuple[Any, Any]:
    """Compute tokens and counts in plain PyTorch, with the same window layout."""
    import torch

    if temperature <= 0:
        own = logits.argmax(-1)
    else:
        values, order = torch.sort(logits.float() / temperature, dim=-1, descending=True)
        p = torch.softmax(values, dim=-1)
        p = p.masked_fill(p.cumsum(-1) - p >= top_p, 0)
        race = p / torch.empty_like(p).exponential_()
        own = order.gather(-1, race.argmax(-1, keepdim=True)).squeeze(-1)
    agree = (batch.ids[:, 1:] == own[:, :-1]).int().cumprod(-1)
    counts = agree.sum(-1, dtype=torch.int32) + 1
    columns = torch.arange(own.shape[1], device=own.device)
    return torch.where(columns < counts[:, None], own, -1).int(), counts


def accept_everything(kernel: Kernel, logits: Any, batch: Batch, dtype: str) -> None:
    """Set the drafts to the target's own tokens, so that all are accepted. Drawn tokens do not depend on drafts."""
    for _ in range(batch.dims["E"]):
        kernel(batch.tensors(logits), batch.dims, dtype)
        tokens = batch.outputs[0][:, :-1]
        batch.ids[:, 1:] = tokens.long().where(tokens >= 0, batch.ids[:, 1:])


def accept_prefix(
    kernel: Kernel, policy: str, dtype: str, vocab: int, k: int, batch: int, *, copy_speed: float, l2_bytes: int
) -> Row:
    """Measure one configuration of AcceptPrefix. Raises ``RuntimeError`` if the greedy tokens differ from PyTorch's."""
    import torch

    temperature, top_p = POLICIES[policy]
    made = Batch.make(batch, k, vocab, temperature, top_p)
    one = (torch.randn((batch, k + 1, vocab), device="cuda") * 3).to(getattr(torch, dtype))
    size = one.numel() * one.element_size()
    accept_everything(kernel, one, made, dtype)
    if temperature == 0:
        ours = [x.clone() for x in made.outputs]
        if not all(torch.equal(a, b) for a, b in zip(ours, torch_accept(one, made, 0, 1), strict=True)):
            raise RuntimeError(
                f"AcceptPrefix {dtype}, V={vocab}, K={k}, B={batch}: greedy tokens differ from PyTorch's"
            )
    # Copies of one input: the drafts stay valid, and each copy has left the cache when it is read again.
    copies = max(2, min(3 * l2_bytes // size + 1, MAX_RING_BYTES // size, MAX_LAUNCHES))
    ring = [one, *(one.clone() for _ in range(copies - 1))]
    launches = max(copies, MIN_LAUNCHES)
    cold = timed(lambda i: kernel(made.tensors(ring[i % copies]), made.dims, dtype), launches)
    warm = timed(lambda i: kernel(made.tensors(one), made.dims, dtype), MIN_LAUNCHES)
    baseline: Spread | None = None
    try:
        few = min(copies, MIN_LAUNCHES) if size < l2_bytes else 2
        baseline = timed(lambda i: torch_accept(ring[i % copies], made, temperature, top_p), few)
    except torch.cuda.OutOfMemoryError:
        pass
    torch.cuda.empty_cache()
    floor = size / (copy_speed * 1e-6)
    return Row("AcceptPrefix", policy, dtype, vocab, k, batch, floor, cold, warm, baseline)


def torch_numbers(numbers: Any, start: Any, window: Any, drafts: Any, columns: int) -> Any:
    """NumbersAt in PyTorch, for valid lengths."""
    import torch

    at = (start + window - drafts)[:, None] + torch.arange(columns, device=start.device)
    read = numbers.gather(1, at.clamp(max=numbers.shape[1] - 1))
    return read.where((at < numbers.shape[1]) & (window > 0)[:, None], 0)


def torch_rows(ids: Any, start: Any, window: Any, drafts: Any, tokens: Any, counts: Any, *, mask: int) -> list[Any]:
    """PlaceholderDraft in PyTorch, for valid lengths."""
    import torch

    k = tokens.shape[1] - 1
    first = (window - 1 - drafts)[:, None]
    real = torch.where((window > 0) & (counts > 0), first[:, 0] + counts, 0)[:, None]
    c = torch.arange(ids.shape[1] + k - 1, device=ids.device)
    prompt = ids.gather(1, (c + 1).clamp(max=ids.shape[1] - 1).expand(len(ids), -1))
    emitted = tokens.gather(1, (c - first).clamp(0, k).long())
    row_ids = torch.where(c < first, prompt, emitted.long()).where(c < real, mask)
    newest = tokens.gather(1, (counts - 1).clamp(min=0).long()[:, None])[:, 0].long()
    emit = (real - 1 + torch.arange(k, device=ids.device)).clamp(min=0).long()
    live = real[:, 0] > 0
    following = [start + real[:, 0], torch.where(live, k + 1, 0).int(), torch.where(live, k, 0).int()]
    return [row_ids, c < real, emit, torch.where(live, newest, 0), *following]


def small_ops(kernels: dict[str, Kernel], k: int, batch: int, copy_speed: float) -> list[Row]:
    """Measure NumbersAt and PlaceholderDraft. They move almost no data, so cold and warm are one figure."""
    import torch

    width, length, i32, i64 = k + 1, 4096, torch.int32, torch.int64
    ids = torch.randint(1000, (batch, width), device="cuda")
    start = torch.arange(batch, device="cuda")
    window, drafts = (torch.full((batch,), n, dtype=i32, device="cuda") for n in (width, k))
    numbers = torch.rand((batch, length), device="cuda")
    tokens = torch.randint(1000, (batch, width), dtype=i32, device="cuda")
    dims = {"B": batch, "E": width, "S": width, "N": length}
    uniform = torch.empty((batch, width), device="cuda")
    rows_out = [
        torch.empty(shape, dtype=dtype, device="cuda")
        for shape, dtype in [((batch, 2 * k), i64), ((batch, 2 * k), torch.bool), ((batch, k), i64)]
    ] + [torch.empty(batch, dtype=dtype, device="cuda") for dtype in (i64, i64, i32, i32)]
    place_in = [ids, start, window, drafts, tokens, window]
    calls: dict[str, tuple[Enqueue, Enqueue, list[Any]]] = {
        "NumbersAt": (
            lambda i: kernels["NumbersAt"]([numbers, start, window, drafts, uniform], dims, columns=width),
            lambda i: torch_numbers(numbers, start, window, drafts, width),
            [uniform, uniform],
        ),
        "PlaceholderDraft": (
            lambda i: kernels["PlaceholderDraft"]([*place_in, *rows_out], dims, mask_token_id=7),
            lambda i: torch_rows(*place_in, mask=7),
            [*place_in, *rows_out],
        ),
    }
    rows = []
    for name, (ours, theirs, moved) in calls.items():
        time = timed(ours, MIN_LAUNCHES)
        floor = sum(x.numel() * x.element_size() for x in moved) / (copy_speed * 1e-6)
        rows.append(Row(name, "", "", 0, k, batch, floor, time, time, timed(theirs, MIN_LAUNCHES)))
    for x, y in zip(rows_out, torch_rows(*place_in, mask=7), strict=True):
        if not torch.equal(x, y):
            raise RuntimeError(f"PlaceholderDraft, K={k}, B={batch}: rows differ from PyTorch's")
    if not torch.equal(uniform, torch_numbers(numbers, start, window, drafts, width)):
        raise RuntimeError(f"NumbersAt, K={k}, B={batch}: numbers differ from PyTorch's")
    return rows


def routed_experts(kernels: dict[str, Kernel], tokens: int, dtype: str, copy_speed: float) -> list[Row]:
    """Measure both products of routed experts."""
    import torch

    def some(*shape: int) -> Any:
        return torch.randn(shape, device=DEVICE).to(getattr(torch, dtype))

    def blocks(*shape: int) -> list[Any]:
        codes = torch.randint(-128, 128, (*shape, 16), dtype=torch.int8, device=DEVICE)
        return [codes, torch.randint(115, 125, shape, dtype=torch.int8, device=DEVICE)]

    choices = [torch.rand((tokens, EXPERTS), device=DEVICE).topk(CHOSEN).indices for _ in range(MAX_LAUNCHES // 8)]
    numbers = [torch.tensor(number, device=DEVICE) for number in (1.702, 1.0, 7.0)]
    gate_up = [*blocks(EXPERTS, INNER, 2, HIDDEN // 32), some(EXPERTS, 2 * INNER), *numbers]
    down = [*blocks(EXPERTS, HIDDEN, INNER // 32), some(EXPERTS, HIDDEN)]
    x, scores, y = some(tokens, HIDDEN), some(tokens, CHOSEN), some(tokens, HIDDEN)
    inner = torch.zeros((tokens, CHOSEN, INNER), device=DEVICE)
    dims = {"N": tokens, "A": CHOSEN, "E": EXPERTS, "H": HIDDEN, "I": INNER}
    calls: dict[str, Callable[[Any], list[Any]]] = {
        "Mxfp4GateUp": lambda experts: [x, experts, *gate_up, inner],
        "Mxfp4Down": lambda experts: [inner, experts, scores, *down, y],
    }
    distinct = statistics.mean(len(experts.unique()) for experts in choices)
    rows = []
    for (name, given), stack in zip(calls.items(), (gate_up, down), strict=True):
        kernel, size = kernels[name], sum(x.numel() for x in stack[:2]) * distinct / EXPERTS

        def launch(i: int, kernel: Kernel = kernel, given: Callable[[Any], list[Any]] = given) -> None:
            kernel(given(choices[i % len(choices)]), dims, dtype)

        cold = timed(launch, len(choices))
        warm = timed(lambda i, launch=launch: launch(0), MIN_LAUNCHES)  # type: ignore[misc]
        floor = size / (copy_speed * 1e-6)
        rows.append(Row(name, "", dtype, 0, tokens - 1, 1, floor, cold, warm, None, compared=False))
    return rows


def machine(kernels: dict[str, Kernel], copy_speed: float, launch: Spread) -> Machine:
    import torch

    properties = torch.cuda.get_device_properties(0)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        driver = "unknown"
    return Machine(
        gpu=properties.name,
        sm=current_sm(),
        driver=driver,
        cuda=str(torch.version.cuda),
        torch=torch.__version__,
        kernels=", ".join(sorted({kernel.compiler for kernel in kernels.values()})),
        l2_mib=properties.L2_cache_size / 2**20,
        copy_gb_per_s=copy_speed / 1e9,
        launch_us=launch.median,
    )


def markdown(on: Machine, rows: Sequence[Row]) -> str:
    """Format the figures as a Markdown table."""
    lines = [
        f"{on.gpu} (SM {on.sm // 10}.{on.sm % 10}), driver {on.driver}, CUDA {on.cuda}, PyTorch {on.torch}, kernels by "
        f"{on.kernels}; a copy moves {on.copy_gb_per_s:.0f} GB/s, a launch that does almost nothing takes "
        f"{on.launch_us:.1f} us, L2 {on.l2_mib:.0f} MiB. Microseconds: median (fastest .. slowest).",
        "",
        "| op | policy | logits | V | K | B | floor | cold | of floor | warm | PyTorch | PyTorch / ours |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        speedup = f"{r.speedup:.1f}x" if r.speedup else "out of memory" if r.compared else ""
        cells = [r.op, r.policy, r.dtype, r.vocab or "", r.k, r.batch, f"{r.floor:.1f}", r.cold, f"{r.of_floor:.2f}x"]
        cells += [r.warm, r.torch_cold or "", speedup]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def missing() -> str | None:
    """Return why the benchmark cannot run here, or None."""
    try:
        import torch
        from cuda.bindings import driver  # noqa: F401
    except ImportError as error:
        return f"needs PyTorch with CUDA and cuda-core: {error}"
    return None if torch.cuda.is_available() else "needs an NVIDIA GPU and a PyTorch with CUDA"


def main() -> int:
    """Measure, print the table, write the JSON; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one vocabulary, one dtype, K of 1 and 8")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    options = parser.parse_args()
    if reason := missing():
        print(f"benchmarks/kernels.py {reason}", file=sys.stderr)
        return 3
    import torch

    torch.manual_seed(0)
    torch.cuda.synchronize()
    try:
        kernels = {name: Kernel(name) for name in OF_DRAFTS + OF_EXPERTS}
    except PeagleError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    copy_speed = bandwidth()
    drafts = (1, 8) if options.quick else DRAFTS
    try:
        small = [row for k in drafts for batch in BATCHES for row in small_ops(kernels, k, batch, copy_speed)]
        windows = WINDOWS[:2] if options.quick else WINDOWS
        small += [row for tokens in windows for row in routed_experts(kernels, tokens, "bfloat16", copy_speed)]
        on = machine(kernels, copy_speed, small[0].cold)
        l2 = int(on.l2_mib * 2**20)
        vocabularies, dtypes = (VOCABULARIES[:1], DTYPES[:1]) if options.quick else (VOCABULARIES, DTYPES)
        cases = list(itertools.product(POLICIES, dtypes, vocabularies, drafts, BATCHES))
        rows = []
        for i, case in enumerate(cases):
            print(f"\r{i + 1} of {len(cases)}", end="", file=sys.stderr, flush=True)
            rows.append(accept_prefix(kernels["AcceptPrefix"], *case, copy_speed=copy_speed, l2_bytes=l2))
        print(file=sys.stderr)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(markdown(on, [*rows, *small]))
    if options.json:
        figures = {"machine": asdict(on), "rows": [asdict(row) for row in [*rows, *small]]}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
