"""Measure the overhead of Triton Inference Server per request, compared with the in-process loop.

    make bench-triton                                         # or, after `make triton-server`:
    python benchmarks/triton_overhead.py demo-engine [--at-once 1 4] [--prompts 20] [--rounds 3]

Each group of prompts is answered in turn by ``engine.submit`` in this process, by ``generate_stream`` over HTTP, and
by a stream over gRPC, in rotating order; the others are idle meanwhile. All chunks are read as they arrive. A request's
time ends with its last chunk, the first token's with the first chunk; ratios are paired per prompt and turn. Bundled
prompts, greedy, end-of-sequence ignored, K of the build.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from peagle.compiler.bundled.prompts import code_prompts
from peagle.compiler.cli import run_cli
from peagle.engines import Engine, SamplingParams

ROOT = Path(__file__).resolve().parents[1]
MODEL = "engine"
SECONDS = 120


@dataclass(frozen=True)
class Call:
    """One answered request: seconds to the first and to the last chunk, and the text."""

    first: float
    whole: float
    text: str


@dataclass
class Way:
    """A way to answer prompts, and its calls so far."""

    name: str
    ask: Callable[[str], Call]
    calls: list[Call] = field(default_factory=list)


def timed(pieces: Iterator[str]) -> Call:
    """Read all chunks; the iterator sends the request when it is first advanced."""
    began, first, text = time.perf_counter(), 0.0, []
    for piece in pieces:
        first = first or time.perf_counter() - began
        text.append(piece)
    return Call(first, time.perf_counter() - began, "".join(text))


def of_loop(engine: Engine, params: SamplingParams, k: int) -> Way:
    """The engine's own loop in this process."""

    def pieces(prompt: str) -> Iterator[str]:
        for delta in engine.submit(prompt, params, num_speculative_tokens=k):
            yield delta.text

    return Way("engine.submit", lambda prompt: timed(pieces(prompt)))


def over_http(port: int, params: SamplingParams, k: int) -> Way:
    """``generate_stream`` over HTTP, with one persistent connection per concurrent request."""
    idle: list[http.client.HTTPConnection] = []

    def pieces(prompt: str) -> Iterator[str]:
        connection = idle.pop() if idle else http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        body = {"text_input": prompt, "stream": True, "max_tokens": params.max_tokens, "ignore_eos": True,
                "num_speculative_tokens": k}  # fmt: skip
        connection.request("POST", f"/v2/models/{MODEL}/generate_stream", json.dumps(body))
        response = connection.getresponse()
        for line in response:
            if line.startswith(b"data:"):
                event = json.loads(line[5:])
                if "error" in event:
                    raise SystemExit(event["error"])
                yield event["text_output"]
        idle.append(connection)

    return Way("generate_stream", lambda prompt: timed(pieces(prompt)))


@contextmanager
def over_grpc(port: int, params: SamplingParams, k: int) -> Iterator[Way]:
    """``ModelStreamInfer`` over gRPC, with one persistent stream per concurrent request."""
    import tritonclient.grpc as grpc

    opened: list[tuple[Any, SimpleQueue[Any]]] = []
    idle: list[tuple[Any, SimpleQueue[Any]]] = []

    def opening() -> tuple[Any, SimpleQueue[Any]]:
        client, arrived = grpc.InferenceServerClient(f"127.0.0.1:{port}"), SimpleQueue[Any]()
        client.start_stream(lambda result, error: arrived.put(error or result))
        opened.append((client, arrived))
        return client, arrived

    def tensor(name: str, kind: str, value: Any) -> Any:
        found = grpc.InferInput(name, [1, 1], kind)
        found.set_data_from_numpy(np.array([[value]], grpc.triton_to_np_dtype(kind)))
        return found

    fixed = [tensor("stream", "BOOL", True), tensor("ignore_eos", "BOOL", True)]
    fixed += [tensor("max_tokens", "INT32", params.max_tokens), tensor("num_speculative_tokens", "INT32", k)]

    def pieces(prompt: str) -> Iterator[str]:
        client, arrived = pair = idle.pop() if idle else opening()
        inputs = [tensor("text_input", "BYTES", prompt.encode()), *fixed]
        client.async_stream_infer(MODEL, inputs, enable_empty_final_response=True)
        while True:
            result = arrived.get(timeout=SECONDS)
            if isinstance(result, Exception):
                raise SystemExit(str(result))
            text = result.as_numpy("text_output")
            if text is not None:
                yield text.item().decode()
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
        idle.append(pair)

    try:
        yield Way("gRPC stream", lambda prompt: timed(pieces(prompt)))
    finally:
        for client, _ in opened:
            client.stop_stream()
            client.close()


def measure(ways: Sequence[Way], groups: Sequence[Sequence[str]]) -> None:
    """Answer every group of prompts in each way, with all prompts of a group together."""
    with ThreadPoolExecutor(max(map(len, groups))) as pool:
        for way in ways:  # warm-up: the first calls allocate and connect
            list(pool.map(way.ask, groups[0]))
        for at, group in enumerate(groups):
            for way in (*ways[at % len(ways) :], *ways[: at % len(ways)]):
                way.calls += pool.map(way.ask, group)


def table(ways: Sequence[Way]) -> str:
    """Format the ways beside each other; the first is the baseline."""
    loop = ways[0].calls
    lines = [
        f"{'':16}{'ms/request':>14}{'quartiles':>14}{'first token':>13}{'x the loop':>12}{'quartiles':>16}{'text':>6}"
    ]
    for way in ways:
        low, middle, high = statistics.quantiles([1000 * call.whole for call in way.calls], n=4)
        first = statistics.median(1000 * call.first for call in way.calls)
        ratios = [call.whole / base.whole for call, base in zip(way.calls, loop, strict=True)]
        least, ratio, most = statistics.quantiles(ratios, n=4)
        same = all(call.text == base.text for call, base in zip(way.calls, loop, strict=True))
        columns = f"{middle:>14.0f}{f'{low:.0f} to {high:.0f}':>14}{first:>13.1f}"
        lines.append(
            f"{way.name:16}{columns}{ratio:>12.3f}{f'{least:.3f} to {most:.3f}':>16}{'same' if same else 'OTHER':>6}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path, help="folder made by `peagle-compile build`")
    parser.add_argument("--server", type=Path, default=ROOT / "build" / "triton", help="made by `make triton-server`")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4], help="concurrent requests")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all prompts")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    (packages,) = options.server.glob("venv/lib/python3.*/site-packages")
    sys.path[1:1] = [str(ROOT / "tools")]
    sys.path.append(str(packages))  # appended, so that this environment's packages take precedence
    from triton_process import TritonServer

    params, prompts = SamplingParams(max_tokens=options.max_tokens, ignore_eos=True), code_prompts(options.prompts)
    texts = [each.text for each in prompts] * options.rounds
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        most = max(options.at_once)
        command = ["triton", str(options.engine), "--repository", str(work / "models"), "--name", MODEL, "--quiet"]
        command += ["--engine-path", str(options.engine.resolve()), "--max-batch-size", str(most)]
        command += ["--threads", str(options.threads)] if options.threads else []
        with redirect_stdout(StringIO()):
            if code := run_cli(command):
                raise SystemExit(code)
        engine = stack.enter_context(
            Engine.load(options.engine, max_batch_size=most, threads=options.threads or None, prefix_cache_bytes=0)
        )
        k = engine.manifest.speculation.num_speculative_tokens
        server = stack.enter_context(
            TritonServer(options.server / "tritonserver", work / "models", work / "log", MODEL)
        )
        server.wait_until(lambda: server.is_there("/v2/health/ready"))
        where = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
        print(f"{where}, {options.engine.name}, K = {k}, {options.max_tokens} tokens, {len(texts)} requests")
        for concurrency in options.at_once:
            groups = [texts[at : at + concurrency] for at in range(0, len(texts), concurrency)]
            grpc = stack.enter_context(over_grpc(server.grpc, params, k))
            ways = [of_loop(engine, params, k), over_http(server.http, params, k), grpc]
            measure(ways, groups)
            print(f"\n{concurrency} concurrent\n{table(ways)}", flush=True)


if __name__ == "__main__":
    main()
