"""The parts of the benchmark, and the runners of each."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from peers.commands import (
    EAGLE3,
    GENAI,
    LLAMA_CPP,
    OPENVINO,
    PEAGLE,
    VLLM,
    XLLAMACPP,
    Name,
    checkpoint_folder,
    command_of,
)
from peers.llama_cpp_source import convert
from peers.process import Peer, running

from peagle.compiler.bench.workloads import human_eval_prompts, spaced
from peagle.compiler.bundled.prompts import code_prompts, question_ids
from peagle.compiler.checkpoints.known_pairs import PAIRS, Local
from peagle.compiler.console.progress import Quiet
from peagle.engines import Engine

from .aims import AT_ONCE, GREEDY, LONG, PASSES, SAMPLED, SMALL
from .engines import built
from .passes import Passes, milliseconds
from .record import Record
from .ways import Way, ours, theirs, together, turn

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "bench-cpu"
PEERS = (
    GENAI, f"{GENAI}:int4", f"{GENAI}:int4+drafts", LLAMA_CPP, f"{LLAMA_CPP}+drafts", XLLAMACPP, f"{XLLAMACPP}:q4_0",
    f"{XLLAMACPP}:iq4_nl", f"{XLLAMACPP}:q4_0+eagle3", OPENVINO, f"{OPENVINO}+drafts", VLLM, f"{VLLM}+peagle",
)  # fmt: skip
QUICK_PEERS = (f"{GENAI}:int4", f"{GENAI}:int4+drafts", XLLAMACPP, f"{XLLAMACPP}:q4_0")
LONG_CONTEXT, CONTEXTS, COLUMNS = 1500, (128, 1500), (1, 2, 4, 6, 8)
TEMPERATURE = 0.8
_TRIAL = range(10, 18)  # token ids of the first prompt of a peer
_WARM = 8  # tokens of the uncounted warm-up run
_OTHERS = ("int8", "fp32", "int4, ort", "fp32, ort")


class Bench:
    """One benchmark run: its options, and what is already loaded."""

    def __init__(self, arguments: argparse.Namespace, up: ExitStack) -> None:
        self.options, self._up = arguments, up
        self._engines: dict[tuple[str, int], Engine] = {}
        self._folders: dict[str, Path] = {}
        self._peers: dict[tuple[str, str], Peer | None] = {}

    def folder(self, name: str) -> Path:
        """Return an engine's folder, building it if needed."""
        if name not in self._folders:
            self._folders[name] = built(name, WORK / "engines", anew=self.options.rebuild)
        return self._folders[name]

    def engine(self, name: str, slots: int = 1) -> Engine:
        """Return an engine, loaded once."""
        key = name, slots
        if key not in self._engines:
            threads = None if name == SMALL else self.options.threads
            self._engines[key] = Engine.load(
                self.folder(name), threads=threads, max_batch_size=slots, prefix_cache_bytes=0
            )
        return self._engines[key]

    def source(self, of: str) -> Path:
        """Return the checkpoint that an engine was built from."""
        return Path(self.engine(of).manifest.target.origin.source)

    def peers(self, names: Sequence[str], of: str, threads: int) -> dict[str, Peer]:
        """Return the peers on an engine's checkpoint; one that is unavailable is skipped with a message."""
        peers = {name: self._peer(name, of, threads) for name in names}
        return {name: peer for name, peer in peers.items() if peer}

    def _peer(self, name: str, of: str, threads: int) -> Peer | None:
        """Return one peer, started once."""
        if (name, of) not in self._peers:
            source, work = self.source(of), WORK / f"peers-{of}"
            work.mkdir(parents=True, exist_ok=True)
            self._peers[name, of] = None
            try:
                heads = _heads(Name.parse(name), source, work)
                command = command_of(name, source, work, threads, self.options.drafts, heads)
                peer = self._up.enter_context(running(name, command))
                peer.prefill(_TRIAL)  # some crash only when they compute
                self._peers[name, of] = peer
            except SystemExit as why:
                print(f"without {name}: {why}", file=sys.stderr, flush=True)
        return self._peers[name, of]

    def prompts(self) -> list[list[int]]:
        """HumanEval prompts, evenly spaced, as questions in the model's chat template."""
        found = spaced(human_eval_prompts(Quiet()), self.options.prompts)
        return [question_ids(self.engine("blocks"), each) for each in found]


def _heads(name: Name, source: Path, work: Path) -> dict[str, Path]:
    """Return the heads that a peer with this name needs, by draft method, in the format that it reads."""
    pair = PAIRS["smollm2-135m"]
    known = {PEAGLE: pair.drafter, EAGLE3: pair.eagle3}
    heads = {method: head.path for method, head in known.items() if isinstance(head, Local)}
    if name.runtime.reads_gguf and name.method in heads:
        file = work / f"{name.method}.gguf"
        target = checkpoint_folder(source, work / "checkpoint")
        convert({file: (str(heads[name.method]), "--target-model-dir", str(target))})
        return {name.method: file}
    return heads


def greedy(bench: Bench, record: Record) -> None:
    """Plain and speculative decoding, beside the peers."""
    prompts = bench.prompts() * bench.options.rounds
    if record.done(GREEDY) == len(prompts):
        return
    blocks = bench.engine("blocks")
    ways = {"blocks, plain": ours(blocks)}
    ways |= {f"blocks, P-EAGLE, K = {k}": ours(blocks, k) for k in bench.options.k}
    ways |= {f"blocks, n-gram, K = {bench.options.drafts}": ours(blocks, bench.options.drafts, "ngram")}
    others = () if bench.options.quick else _OTHERS
    ways |= {f"{name}, plain": ours(bench.engine(name)) for name in others}
    peers = bench.peers(bench.options.peers, "blocks", bench.options.threads)
    ways |= {name: theirs(peer) for name, peer in peers.items()}
    _turns(bench, record, GREEDY, ways, prompts, bench.options.tokens)


def sampled(bench: Bench, record: Record) -> None:
    """The same with sampling, without the peers."""
    blocks, drafts = bench.engine("blocks"), bench.options.drafts
    ways = {"blocks, plain": ours(blocks, temperature=TEMPERATURE)}
    ways |= {f"blocks, P-EAGLE, K = {k}": ours(blocks, k, temperature=TEMPERATURE) for k in bench.options.k}
    ways |= {f"blocks, n-gram, K = {drafts}": ours(blocks, drafts, "ngram", temperature=TEMPERATURE)}
    _turns(bench, record, SAMPLED, ways, bench.prompts() * bench.options.rounds, bench.options.tokens)


def long(bench: Bench, record: Record) -> None:
    """Plain decoding after a long prompt."""
    engine = bench.engine("blocks")
    count = 2 if bench.options.quick else 4
    if record.done(LONG) == count:
        return
    stream = [token for prompt in code_prompts() for token in engine.tokenizer.encode(prompt.text)]
    while len(stream) < LONG_CONTEXT + bench.options.prompts:
        stream += stream
    prompts = [stream[at : at + LONG_CONTEXT] for at in range(count)]
    ways = {"blocks, plain": ours(engine)}
    ways |= {} if bench.options.quick else {"fp32, plain": ours(bench.engine("fp32"))}
    plain = [name for name in bench.options.peers if "+" not in name and name != GENAI]
    ways |= {name: theirs(peer) for name, peer in bench.peers(plain, "blocks", bench.options.threads).items()}
    _turns(bench, record, LONG, ways, prompts, bench.options.tokens // 2)


def at_once(bench: Bench, record: Record) -> None:
    """Four concurrent requests compared with one."""
    engine, prompts = bench.engine("blocks", 4), bench.prompts()
    decode = together(engine)
    if not record.done(AT_ONCE):
        decode(prompts[:4], _WARM)  # allocates the four caches, whose memory is committed on the first write
    for number in range(record.done(AT_ONCE), 2 if bench.options.quick else 4):
        chosen = [prompts[(number + i) % len(prompts)] for i in range(4)]
        found = {name: decode(chosen[:n], bench.options.tokens) for name, n in (("one", 1), ("four", 4))}
        _keep(bench, record, AT_ONCE, found)


def passes(bench: Bench, record: Record) -> None:
    """One pass of the target over a number of columns at several context lengths: the graphs alone."""
    names = ("blocks", "fp32", "int4, ort") if not bench.options.quick else ("blocks",)
    graphs = {name: Passes(bench.folder(name), threads=bench.options.threads) for name in names}
    for _ in range(record.done(PASSES), bench.options.rounds + 2):
        found = {}
        for context in CONTEXTS:
            for columns in COLUMNS:
                for name, graph in graphs.items():
                    run = graph.pass_over(columns, context)
                    found[f"{name}, {context}, {columns} column{'s' * (columns > 1)}"] = milliseconds(run, 12)
        by_graph = sorted(found.items(), key=lambda item: names.index(item[0].rsplit(", ", 2)[0]))
        _keep(bench, record, PASSES, dict(by_graph))


def small(bench: Bench, record: Record) -> None:
    """The bundled pair without drafts, beside onnxruntime-genai."""
    engine = bench.engine(SMALL)
    ways = {"plain": ours(engine)}
    ways |= {f"P-EAGLE, K = {k}": ours(engine, k) for k in bench.options.k}
    ways |= {name: theirs(peer) for name, peer in bench.peers([GENAI], SMALL, bench.options.threads).items()}
    prompts = [engine.tokenizer.encode(prompt.text) for prompt in code_prompts(2 * bench.options.prompts)]
    _turns(bench, record, SMALL, ways, prompts, bench.options.tokens)


PARTS: dict[str, Callable[[Bench, Record], None]] = {
    GREEDY: greedy, SAMPLED: sampled, LONG: long, AT_ONCE: at_once, PASSES: passes, SMALL: small,
}  # fmt: skip


def _turns(
    bench: Bench, record: Record, part: str, ways: Mapping[str, Way], prompts: Sequence[Sequence[int]], count: int
) -> None:
    """Decode the missing turns after an uncounted warm-up run."""
    missing = [*enumerate(prompts)][record.done(part) :]
    for way in ways.values() if missing else ():
        way(prompts[0], _WARM)
    for number, prompt in missing:
        _keep(bench, record, part, *turn(ways, prompt, count, number))
        print(f"{part}: {number + 1} of {len(prompts)}", file=sys.stderr, flush=True)


def _keep(
    bench: Bench, record: Record, part: str, values: Mapping[str, float], tokens: Mapping[str, float] | None = None
) -> None:
    """Save a turn, then pause."""
    record.add(part, values, tokens)
    time.sleep(bench.options.rest)
