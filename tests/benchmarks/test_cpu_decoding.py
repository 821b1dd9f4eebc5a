"""CPU decoding is measured in turns, ratios are paired per turn, and results are compared with targets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cpu.aims import AT_ONCE, GREEDY, MEMORY, PASSES, PROMPTS, SIZES, WEIGHTS, WINDOWS, aims
from cpu.record import Record
from cpu.tables import report
from cpu.ways import Decoded, turn
from peers.commands import command_of

from peagle.compiler.bench.statistics import Spread
from peagle.engines import Engine

SETTINGS = {"tokens": 8}


def test_interrupted_run_continues_and_drops_the_partial_turn(tmp_path: Path) -> None:
    first = Record.open(tmp_path, SETTINGS)
    first.add(GREEDY, {"a": 2.0, "b": 1.0}, {"a": 1.5})
    with first.path.open("a") as file:
        file.write('{"part": "greedy", "val')
    again = Record.open(tmp_path, SETTINGS)
    assert (again.done(GREEDY), again.turns, again.tokens) == (1, first.turns, {GREEDY: {"a": [1.5]}})
    again.add(GREEDY, {"a": 4.0, "b": 1.0})
    assert Record.open(tmp_path, SETTINGS).turns[GREEDY] == {"a": [2, 4], "b": [1, 1]}


def test_other_settings_or_fresh_start_a_new_record(tmp_path: Path) -> None:
    Record.open(tmp_path, SETTINGS).add(GREEDY, {"a": 2.0})
    assert Record.open(tmp_path, {"tokens": 9}).done(GREEDY) == 0
    assert Record.open(tmp_path, SETTINGS, fresh=True).done(GREEDY) == 0
    assert Record.open(tmp_path, SETTINGS).done(GREEDY) == 0


def test_ratios_are_of_one_turn(tmp_path: Path) -> None:
    record = Record.open(tmp_path, SETTINGS)
    for speed in (10.0, 20.0, 40.0):  # of the machine
        record.add(GREEDY, {"blocks, plain": 3 * speed, "llama.cpp": speed})
    assert record.ratio(GREEDY, "blocks, plain", "llama.cpp") == Spread(3, 3, 3)
    assert record.ratio(GREEDY, "blocks, plain", "another") is None


def test_aim_is_compared_in_its_declared_direction(tmp_path: Path) -> None:
    record = Record.open(tmp_path, SETTINGS)
    record.add(GREEDY, {"blocks, plain": 100.0, "blocks, P-EAGLE, K = 2": 170.0, "blocks, P-EAGLE, K = 4": 150.0,
                        "llama.cpp": 60.0, "llama.cpp+drafts": 100.0, "openvino-genai+drafts": 120.0})  # fmt: skip
    record.add(PASSES, {"blocks, 128, 1 column": 10.0, "blocks, 128, 4 columns": 12.0, "blocks, 128, 8 columns": 20.0})
    record.add(AT_ONCE, {"one": 100.0, "four": 200.0})
    assert {aim.what: (round(aim.found.median, 2), aim.is_met) for aim in aims(record)} == {
        "plain decoding over llama.cpp": (1.67, False),
        "a pass of 4 columns over one": (1.2, True),
        "a pass of 8 columns over one": (2.0, False),
        "blocks, P-EAGLE, K = 2, greedy, over plain": (1.7, True),
        "blocks, P-EAGLE, K = 2, greedy, over llama.cpp plain": (2.83, False),
        "blocks, P-EAGLE, K = 2, greedy, over openvino-genai+drafts": (1.42, False),
        "four requests at once over one": (2.0, False),
    }
    told = report(record)
    assert "<= 1.3  yes" in told
    assert ">= 2.5  NO" in told
    assert "1.20" in next(line for line in told.splitlines() if line.startswith("blocks, 128, 4 columns"))


def test_each_runtime_has_a_row_with_speeds_and_quality(tmp_path: Path) -> None:
    record = Record.open(tmp_path, SETTINGS)
    record.add(GREEDY, {"blocks, plain": 300.0, "xllamacpp:q4_0": 150.0, "vllm+peagle": 90.0})
    record.add(PROMPTS, {"blocks, plain": 2000.0, "xllamacpp:q4_0": 1000.0})
    for slow in (1, 2, 4):
        times = {"1 column": 2.0, "5 columns": 3.0, "8 columns": 5.0}
        record.add(WINDOWS, {f"blocks, plain, {columns}": slow * time for columns, time in times.items()})
    record.add(MEMORY, {"GB/s": 16.4})
    record.add(SIZES, {"blocks, plain": 85.5})
    record.add(WEIGHTS, {"xllamacpp:q4_0": 3.78})
    rows = report(record).partition("all runtimes; memory 16.4 GB/s")[2].splitlines()
    assert rows[2].split() == ["blocks,", "plain", "300", "2000", "1.50", "2.50", "-", "85.5"]
    assert rows[3].split() == ["xllamacpp:q4_0", "150", "1000", "-", "-", "3.78", "-"]
    assert rows[4].split() == ["vllm+peagle", "90.0", "-", "-", "-", "-", "-"]


def test_every_turn_starts_with_a_different_runner() -> None:
    order: list[str] = []

    def way(name: str) -> Callable[[list[int], int], Decoded]:
        return lambda prompt, count: (order.append(name), Decoded(len(prompt) * count, 1.5 * (name == "b")))[1]

    ways = {name: way(name) for name in "abc"}
    assert turn(ways, [1, 2], 8, first=1) == ({"a": 16, "b": 16, "c": 16}, {"b": 1.5})
    assert order == ["b", "c", "a"]


@pytest.mark.parametrize("name", ["sglang", "llama.cpp:int4", "onnxruntime-genai+eagle3", "vllm+drafts"])
def test_a_peer_that_there_is_not_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"unknown peer {name.replace('+', '.')}"):
        command_of(name, tmp_path, tmp_path, 2)


def test_peers_that_read_gguf_files_refuse_a_folder(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="openvino-genai needs a GGUF file"):
        command_of("openvino-genai+drafts", tmp_path, tmp_path, 2)


def test_our_ways_decode_on_an_engine(demo_engine: Path) -> None:
    from cpu.passes import Passes, milliseconds
    from cpu.ways import ours, together

    engine = Engine.load(demo_engine)
    prompt = engine.tokenizer.encode("def ")
    assert ours(engine)(prompt, 6).speed > 0
    assert ours(engine, 2)(prompt, 6).per_round >= 1
    assert together(engine)([prompt], 6) > 0
    graph = Passes(demo_engine)
    assert milliseconds(graph.pass_over(3, 16), 1) > 0
    assert graph.bytes_read(16) > graph.bytes_read(0) > 0
