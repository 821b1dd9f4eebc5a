"""Several engines in one server, several instances of one, and a model that is replaced under load."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from peagle.engines import Engine, SamplingParams
from tests.serving.triton.server_process import TritonProcess
from tests.serving.triton.test_lifecycle import write

pytestmark = pytest.mark.triton

PROMPTS = ["def gcd(a, b):", "class Stack:\n    def", "import os\n\n", "x = ["]
IDS = [[5, 6, 7], [9, 30, 7, 11], [3], [12, 13]]


@pytest.fixture
def own(triton: TritonProcess, triton_repository: Path) -> Iterator[Path]:
    """The repository, for models whose names begin with "own"; they are unloaded and removed with the test."""
    yield triton_repository
    for name in sorted({path.name for path in triton_repository.glob("own*")}, reverse=True):
        triton.unload(name)
        shutil.rmtree(triton_repository / name)


def test_two_engines_answer_concurrently(
    triton: TritonProcess, own: Path, tiny_folder: Path, tiny_engine: Engine, served_engine: Engine
) -> None:
    write(tiny_folder, own, "own-tiny", "--link")
    assert triton.load("own-tiny").status == 200
    texts = [each.text for each in served_engine.generate(PROMPTS, SamplingParams(max_tokens=24))]
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    tokens = [list(each.token_ids) for each in tiny_engine.generate(IDS, params)]

    def ask(number: int) -> None:
        at = number % len(PROMPTS)
        if number % 2:
            assert triton.stream("demo", text_input=PROMPTS[at], max_tokens=24).text == texts[at]
        else:
            fields = {"input_ids": IDS[at], "max_tokens": 24, "ignore_eos": True, "return_token_ids": True}
            assert triton.generate("own-tiny", **fields).events[0]["output_ids"] == tokens[at]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(48)))
    triton.wait_until(lambda: triton.counted("generation_tokens_total", "own-tiny") == 24 * 24)


def test_instances_of_a_model_share_its_requests_and_its_series(
    triton: TritonProcess, own: Path, talking_engine: Path, served_engine: Engine
) -> None:
    write(talking_engine, own, "own-twins", "--link", "--instances", "2", "--max-batch-size", "1")
    for name in ("own-twins", "own-twins_whole"):
        assert triton.load(name).status == 200
    wanted = [each.text for each in served_engine.generate(PROMPTS, SamplingParams(max_tokens=16))]

    def ask(number: int) -> None:
        model = "own-twins" if number % 2 else "own-twins_whole"
        assert triton.generate(model, text_input=PROMPTS[number % 4], max_tokens=16).text == wanted[number % 4]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(48)))
    ends = ("length", "stop")
    triton.wait_until(
        lambda: sum(triton.counted("request_success_total", "own-twins", finished_reason=end) for end in ends) == 48
    )
    streams = [triton.events("own-twins", text_input="x", max_tokens=480, ignore_eos=True) for _ in range(2)]
    for each in streams:
        next(each)
    triton.wait_until(lambda: triton.counted("num_requests_running", "own-twins") == 2)  # a slot of each
    for each in streams:
        each.close()  # type: ignore[attr-defined]
    triton.wait_until(lambda: triton.counted("num_requests_running", "own-twins") == 0)


def test_a_model_is_replaced_while_it_answers(
    triton: TritonProcess, own: Path, talking_engine: Path, served_engine: Engine
) -> None:
    write(talking_engine, own, "own-next", "--link")
    for name in ("own-next", "own-next_whole"):
        assert triton.load(name).status == 200
    (wanted,) = served_engine.generate(PROMPTS[:1], SamplingParams(max_tokens=400, ignore_eos=True))
    whole = {"text_input": PROMPTS[0], "max_tokens": 400, "sampling_parameters": '{"ignore_eos": true}'}
    with ThreadPoolExecutor(1) as pool:
        stream = triton.events("own-next", text_input=PROMPTS[0], max_tokens=400, ignore_eos=True)
        text = next(stream)["text_output"]
        forwarded = pool.submit(triton.generate, "own-next_whole", **whole)
        triton.wait_until(lambda: triton.counted("num_requests_running", "own-next") == 2)
        write(talking_engine, own, "own-next", "--link", "--max-batch-size", "2")
        triton.load_over_grpc("own-next")
        text += "".join(event["text_output"] for event in stream)
        assert text == wanted.text
        assert forwarded.result().text == wanted.text
    for model in ("own-next", "own-next_whole"):
        assert triton.generate(model, **whole).text == wanted.text
