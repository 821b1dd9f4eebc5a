"""Measure peak memory and time of `peagle-compile export` beside optimum-onnx, on a 10 GB Qwen3-MoE checkpoint.

    make bench-export                                       # or, with the [export] extra installed:
    python benchmarks/export_memory.py

The checkpoint has the key names and widths of Qwen3-Coder-30B-A3B, 7 of its 48 layers, and random weights. Every export
runs in its own process, alone on the machine, with the checkpoint out of the page cache; its time ends when the output
is on disk. The first row is the default command: target and drafter in FP32. For the ratio, both exporters write the
same: the target alone, in standard operators, in the narrowest type that the peer supports. The peer's output check is
disabled, because this exporter has none. A peer that is about to exhaust memory is stopped and reported, and compared
again on a checkpoint with fewer experts. `--peer optimum-onnx transformers` adds the exporter of transformers.

Peak is all resident memory, including pages of mapped files; anonymous is the sampled part that the kernel could not
drop; beyond imports is the peak minus that of importing the libraries. Needs Linux, 40 GB of disk and 20 minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

OURS = "peagle-compile"
TOOL = Path(__file__).resolve().parent.parent / "tools" / "synthetic_checkpoint.py"
MODEL = "qwen3-coder-30b"
EXPERTS = 128  # per layer
MIN_LAYERS = 7  # so that the drafter's auxiliary hidden-state layers differ
SHARED = ("torch", "onnx", "onnxruntime")  # packages installed in the same version for a peer
LAYER_BYTES = 1.25e9  # per layer in BF16; embedding and output matrix together take as much, and so does the head
ENVIRONMENT_BYTES = 3e9
KEPT_FREE = 1.5e9  # an export that leaves less free memory is stopped
SAMPLE_SECONDS = 0.1

OPTIMUM = """
import sys
from optimum.exporters.onnx import main_export
main_export(sys.argv[1], output=sys.argv[2], task="text-generation-with-past", dtype="fp16", local_files_only=True,
            no_post_process=True, do_validation=False)
"""
TRANSFORMERS = """
import sys
import torch
from transformers import AutoModelForCausalLM
from transformers.exporters import OnnxConfig, OnnxExporter
from transformers.exporters.utils import decompose_for_generation
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval()
# One graph with a cache, for prompt and decoding alike, as ours.
graphs = decompose_for_generation(model, {"input_ids": torch.arange(6).view(2, 3)}, multi_token_decode=True)
exported = OnnxExporter().export(*graphs["decode"], config=OnnxConfig(dynamic=True))
exported.save_pretrained(sys.argv[2])
"""


@dataclass(frozen=True)
class Peer:
    """Another exporter: ``code`` reads argv[1] and writes argv[2] in its narrowest type, ``precision``."""

    name: str
    version: str
    precision: str
    code: str
    imports: str
    requirements: tuple[str, ...] = ()


# Pinned, because results belong to a version. In BF16 optimum-onnx fails: "ScalarType ComplexDouble".
PEERS = {
    "optimum-onnx": Peer(
        "optimum-onnx", "0.1.0", "fp16", OPTIMUM, "import torch, transformers, optimum.exporters.onnx",
        ("optimum-onnx[onnxruntime]==0.1.0", "optimum==2.1.0", "transformers==4.57.6"),
    ),
    "transformers": Peer(
        "transformers", version("transformers"), "bf16", TRANSFORMERS,
        "import torch, transformers.exporters.exporter_onnx",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Usage:
    """Resource use of a process and its children. ``stopped`` is the reason it was stopped, or empty if it finished."""

    seconds: float
    peak: int
    anonymous: int
    stopped: str


@dataclass(frozen=True)
class Row:
    """One export."""

    exporter: str
    checkpoint: str
    checkpoint_bytes: int
    precision: str
    output_bytes: int
    peak_bytes: int
    anonymous_bytes: int
    beyond_imports_bytes: int
    seconds: float
    stopped: str


def available() -> int:
    """Return the bytes of memory that are still available."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def resident(group: int) -> tuple[int, int]:
    """Return the resident bytes of a process group, and the anonymous part."""
    both = anonymous = 0
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdigit() or os.getpgid(int(folder.name)) != group:
                continue
            lines = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        except (OSError, ValueError):
            continue  # it has ended
        both += int(lines.get("VmRSS", "0 kB").split()[0]) * 1024
        anonymous += int(lines.get("RssAnon", "0 kB").split()[0]) * 1024
    return both, anonymous


def measured(command: Sequence[str | Path], log: Path, env: dict[str, str], limit: float = math.inf) -> Usage:
    """Run ``command``; stop it before memory runs out, or after ``limit`` seconds."""
    began = time.monotonic()
    peak = anonymous = 0
    stopped = ""
    with log.open("wb") as errors, log.with_suffix(".out").open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=errors, env=os.environ | env, start_new_session=True)
        try:
            with suppress(OSError):  # it may have ended; protects this process if the kernel's OOM killer acts first
                Path(f"/proc/{child.pid}/oom_score_adj").write_text("1000")
            while not (ended := os.wait4(child.pid, os.WNOHANG))[0]:
                now, of_it = resident(child.pid)
                peak, anonymous = max(peak, now), max(anonymous, of_it)
                if available() < KEPT_FREE:
                    stopped = "out of memory"
                elif time.monotonic() - began > limit:
                    stopped = f"not done after {limit / 60:.0f} min"
                if stopped:
                    os.killpg(child.pid, signal.SIGKILL)
                    ended = os.wait4(child.pid, 0)
                    break
                time.sleep(SAMPLE_SECONDS)
            child.returncode = os.waitstatus_to_exitcode(ended[1])
        finally:
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    if child.returncode == -signal.SIGKILL:
        stopped = stopped or "killed"
    elif child.returncode:
        log_text = log.read_text(errors="replace") + log.with_suffix(".out").read_text(errors="replace")
        raise SystemExit(f"{log_text[-4000:]}\n{command[0]} failed with exit code {child.returncode}")
    return Usage(time.monotonic() - began, max(peak, ended[2].ru_maxrss * 1024), anonymous, stopped)


def files(folder: Path) -> list[Path]:
    """Return all files below ``folder``."""
    return [path for path in folder.rglob("*") if path.is_file()]


def size(folder: Path) -> int:
    """Return the total bytes of the files below ``folder``."""
    return sum(path.stat().st_size for path in files(folder))


def flush(folder: Path, *, forget: bool = False) -> None:
    """Flush the files below ``folder`` to disk; ``forget`` also drops them from the page cache."""
    for path in files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            if forget:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True)
class Bench:
    """The work folder, and the time limit of a peer in seconds."""

    work: Path
    limit: float

    def checkpoint(self, layers: int, experts: int) -> Path:
        """Create a synthetic checkpoint in a separate process, so that this one stays small."""
        folder = self.work / f"{layers}-layers-{experts}-experts"
        if not folder.exists():
            say(f"writing {folder.name}")
            options = ["--layers", str(layers), "--experts", str(experts), "--head", "flat", "--head-layers", "1"]
            done([sys.executable, TOOL, "--model", MODEL, "--out", folder, *options])
        return folder

    def python(self, peer: Peer) -> Path:
        """Return a Python interpreter with the peer: this one, or that of an environment with the same torch."""
        if not peer.requirements:
            return Path(sys.executable)
        folder, installed = self.work / peer.name, self.work / f"{peer.name}.installed"
        python = folder / "bin" / "python"
        if not installed.exists():
            say(f"installing {peer.name}")
            done([sys.executable, "-m", "venv", "--clear", folder])
            shared = [f"{name}=={version(name)}" for name in SHARED]
            quietly = ["-qq", "--disable-pip-version-check", "--no-input"]
            done([python, "-m", "pip", *quietly, "install", *peer.requirements, *shared])
            installed.touch()
        return python

    def ours(self, checkpoint: Path, lowering: str, precision: str, *, drafter: bool = False) -> Row:
        """Run this project's export; its report has the memory of the imports."""
        name = f"{OURS} {version(OURS)}"
        command: list[str | Path] = [Path(sys.executable).with_name(OURS), "export", "--force", "--json"]
        command += ["--model", checkpoint / "target", "--for", lowering, "--precision", precision]
        command += ["--draft", checkpoint / "head"] if drafter else []
        with self._clean():
            say(f"{name}, {lowering} {precision}, {checkpoint.name}{' with drafter' if drafter else ''}")
            usage = self._export([*command, "--out", self.out], checkpoint, math.inf)
            if usage.stopped:
                raise SystemExit(f"{name}: {usage.stopped}")
            imports = json.loads(self.log.with_suffix(".out").read_text())["peak_rss_after_imports_bytes"]
            read = checkpoint if drafter else checkpoint / "target"
            return self._row(name, checkpoint.name + " + drafter" * drafter, size(read), precision, usage, imports)

    def theirs(self, peer: Peer, checkpoint: Path) -> Row:
        """Run the peer's export, and a process that only imports it."""
        python, target = self.python(peer), checkpoint / "target"
        name = f"{peer.name} {peer.version}"
        with self._clean():
            say(f"{name}, {peer.precision}, {checkpoint.name}")
            imports = measured([python, "-c", peer.imports], self.log, {}).peak
            usage = self._export([python, "-c", peer.code, target, self.out], checkpoint, self.limit)
            return self._row(name, checkpoint.name, size(target), peer.precision, usage, imports)

    @property
    def run(self) -> Path:
        """The output folder of one run, reused by the next."""
        return self.work / "run"

    @property
    def out(self) -> Path:
        """The exported files."""
        return self.run / "out"

    @property
    def log(self) -> Path:
        """Standard error of the run."""
        return self.run / "log"

    @contextmanager
    def _clean(self) -> Iterator[None]:
        shutil.rmtree(self.run, ignore_errors=True)
        self.run.mkdir()
        try:
            yield
        finally:
            shutil.rmtree(self.run)

    def _export(self, command: Sequence[str | Path], checkpoint: Path, limit: float) -> Usage:
        flush(checkpoint, forget=True)
        env = {"PEAGLE_CACHE": str(self.run / "cache"), "HF_HUB_OFFLINE": "1"}
        usage = measured(command, self.log, env, limit)
        began = time.monotonic()
        flush(self.out)
        return replace(usage, seconds=usage.seconds + time.monotonic() - began)

    def _row(self, exporter: str, checkpoint: str, read: int, precision: str, usage: Usage, imports: int) -> Row:
        return Row(
            exporter=exporter,
            checkpoint=checkpoint,
            checkpoint_bytes=read,
            precision=precision,
            output_bytes=0 if usage.stopped else size(self.out),
            peak_bytes=usage.peak,
            anonymous_bytes=usage.anonymous,
            beyond_imports_bytes=usage.peak - imports,
            seconds=round(usage.seconds, 1),
            stopped=usage.stopped,
        )


def compare(bench: Bench, peer: Peer, checkpoint: Path, fewer: tuple[int, int]) -> list[tuple[Row, Row]]:
    """Compare both exporters on ``checkpoint``; if the peer does not finish, also on one with ``fewer`` experts."""
    pairs = [(bench.ours(checkpoint, "std", peer.precision), bench.theirs(peer, checkpoint))]
    if pairs[0][1].stopped:
        smaller = bench.checkpoint(*fewer)
        pairs.append((bench.ours(smaller, "std", peer.precision), bench.theirs(peer, smaller)))
    return pairs


def table(rows: Sequence[Row]) -> str:
    """Format one line per export, sizes in GB."""
    cells: list[tuple[str, ...]] = [
        ("", "checkpoint", "GB", "written", "peak", "anonymous", "beyond imports", "seconds")
    ]
    for row in rows:
        sizes = (row.peak_bytes, row.anonymous_bytes, row.beyond_imports_bytes)
        written = "-" if row.stopped else f"{row.output_bytes / 1e9:.2f} {row.precision}"
        seconds = f"{row.seconds:.0f}"
        texts = (row.exporter, row.checkpoint, f"{row.checkpoint_bytes / 1e9:.2f}", written)
        cells.append((*texts, *(f"{count / 1e9:.2f}" for count in sizes), seconds))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in cells
    ]
    ends = ["", *(f"  {row.stopped}" if row.stopped else "" for row in rows)]
    return "\n".join(line + end for line, end in zip(lines, ends, strict=True))


def ratio(ours: Row, theirs: Row) -> dict[str, float | str]:
    """Return the peer's figures over ours; for a stopped export, memory is a lower bound and time is omitted."""
    return {
        "peer": theirs.exporter,
        "checkpoint": theirs.checkpoint,
        "precision": theirs.precision,
        "stopped": theirs.stopped,
        "peak": theirs.peak_bytes / ours.peak_bytes,
        "anonymous": theirs.anonymous_bytes / ours.anonymous_bytes,
        "beyond imports": theirs.beyond_imports_bytes / ours.beyond_imports_bytes,
        "seconds": theirs.seconds / ours.seconds,
    }


def ratios(pairs: Sequence[tuple[Row, Row]]) -> str:
    """Format one line per pair."""
    lines = []
    for pair in pairs:
        by = ratio(*pair)
        names = ("peak", "anonymous", "beyond imports") + (() if by["stopped"] else ("seconds",))
        least = "over " if by["stopped"] else ""
        lines.append(
            f"{by['peer']} / ours, {by['checkpoint']}, {by['precision']}: "
            + ", ".join(f"{name} {least}{by[name]:.1f}x" for name in names)
            + (f" ({by['stopped']})" if by["stopped"] else "")
        )
    return "\n".join(lines)


def done(command: Sequence[str | Path]) -> None:
    """Run a preparation command, which reports its own failure."""
    if code := subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise SystemExit(code)


def say(text: str) -> None:
    """Print progress on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr)


@contextmanager
def workplace(kept: Path | None) -> Iterator[Path]:
    """Yield ``kept``, or a temporary folder that is always removed."""
    if kept:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="export-memory-") as folder:
        yield Path(folder)


def require_room(work: Path, given: Path | None, layers: int) -> None:
    """Check the disk space first: FP32 takes twice the checkpoint, and a peer writes its output twice."""
    checkpoint = size(given) if given else LAYER_BYTES * (layers + 2)
    needed = checkpoint * (2 if given else 3) + ENVIRONMENT_BYTES
    free = shutil.disk_usage(work).free
    if free < needed:
        raise SystemExit(
            f"{needed / 1e9:.0f} GB of disk needed, but {work} has {free / 1e9:.0f} GB free: choose another folder for "
            "--work, or fewer --layers (minimum: 7)"
        )


def facts(load: float, peers: Sequence[Peer]) -> str:
    """Return the machine and the versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    parts = [f"{platform.machine()}, {os.cpu_count()} cores, {memory / 1e9:.0f} GB of memory, load {load:.1f} before"]
    parts += [f"{name} {version(name)}" for name in (*SHARED, "transformers")]
    own = [f"{peer.name}: {' '.join(peer.requirements)}, otherwise as above" for peer in peers if peer.requirements]
    return "\n".join([", ".join(parts), *own])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="folder with target and head; default: a generated one")
    parser.add_argument("--layers", type=int, default=MIN_LAYERS, help="layers to generate; default: %(default)s")
    parser.add_argument(
        "--fewer-experts",
        type=int,
        default=64,
        help="experts after a peer was stopped; default: %(default)s",
    )
    parser.add_argument("--peer", nargs="*", choices=PEERS, default=["optimum-onnx"], help="default: optimum-onnx")
    parser.add_argument("--peer-timeout", type=float, default=45, metavar="MINUTES", help="default: %(default)s")
    parser.add_argument("--work", type=Path, help="folder for checkpoints and peers; default: a temporary one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure to this file")
    arguments = parser.parse_args()
    if not sys.platform.startswith("linux"):
        parser.error("needs Linux: memory is read from /proc")
    if arguments.layers < MIN_LAYERS:
        parser.error(f"--layers must be at least {MIN_LAYERS}")
    if arguments.checkpoint and not all((arguments.checkpoint / name).is_dir() for name in ("target", "head")):
        parser.error(f"{arguments.checkpoint} must contain target and head")
    for number in (signal.SIGINT, signal.SIGTERM):  # remove created files and end child processes
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    peers, load = [PEERS[name] for name in arguments.peer], os.getloadavg()[0]
    with workplace(arguments.work) as work:
        require_room(work, arguments.checkpoint, arguments.layers)
        bench = Bench(work, arguments.peer_timeout * 60)
        given = arguments.checkpoint and arguments.checkpoint.resolve()
        checkpoint = given or bench.checkpoint(arguments.layers, EXPERTS)
        typed = bench.ours(checkpoint, "ort", "fp32", drafter=True)
        fewer = (arguments.layers, arguments.fewer_experts)
        pairs = [pair for peer in peers for pair in compare(bench, peer, checkpoint, fewer)]
    rows = [typed, *(row for pair in pairs for row in pair)]
    print(f"{facts(load, peers)}\n\n{table(rows)}\n\n{ratios(pairs)}")
    if arguments.json:
        figures = {"machine": facts(load, peers), "rows": [asdict(row) for row in rows]}
        figures |= {"ratios": [ratio(*pair) for pair in pairs]}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
