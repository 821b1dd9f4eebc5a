"""A peer decodes in a separate process, and its errors are reported here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from peers.commands import RUNTIMES, Name, command_of
from peers.environments import HERE
from peers.process import running
from peers.serve import Decoded
from peers.xllamacpp_server import decoded

ECHO = (
    "from peers.serve import Decoded, Served, serve\n"
    "window = None  # or a function\n"
    "serve(lambda: Served('1.2', 7, lambda prompt, count: Decoded(prompt[:count], 0.25, 0.5), window))"
)


def served(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_peer_returns_tokens_and_seconds_for_prompts() -> None:
    with running("echo", served(ECHO)) as peer:
        assert (peer.name, peer.version) == ("echo", "1.2")
        assert peer.generate([3, 1, 4], 2) == ([3, 1], 0.5)
        assert peer.generate([1, 5], 1) == ([1], 0.5)


def test_prompts_windows_and_bytes_are_requested_one_by_one() -> None:
    program = ECHO.replace("None  # or a function", "lambda prompt, tokens: len(prompt) + len(tokens) / 10")
    with running("echo", served(program)) as peer:
        assert (peer.prefill([3, 1, 4]), peer.window([3, 1], [4, 1, 5]), peer.bytes()) == (0.25, 2.3, 7)


def test_peer_that_cannot_measure_windows_raises_an_error() -> None:
    with running("echo", served(ECHO)) as peer:
        assert peer.window([3], [1]) is None


def test_library_output_is_not_parsed_as_an_answer() -> None:
    program = (
        "from peers.serve import Decoded, Served, serve\n"
        "def load():\n"
        "    print('a library greets')\n"
        "    return Served('1', 0, lambda prompt, count: (print('and again'), Decoded(prompt, 0.0, 0.0))[1])\n"
        "serve(load)"
    )
    with running("noisy", served(program)) as peer:
        assert peer.generate([7], 1) == ([7], 0.0)


@pytest.mark.parametrize("program", ["raise RuntimeError('no such model')", ECHO.replace("prompt[:count]", "1 / 0")])
def test_dead_peer_reports_its_output(program: str) -> None:
    with (
        pytest.raises(SystemExit, match=r"broken ended with 1:(?s:.*)Error"),
        running("broken", served(program)) as peer,
    ):
        peer.generate([1], 1)


def test_times_of_llama_cpp_are_before_and_after_the_first_token() -> None:
    timings = {"prompt_n": 155, "prompt_ms": 500.0, "predicted_n": 3, "predicted_ms": 20.0}
    assert decoded({"tokens": [5, 6, 7], "timings": timings, "content": "abc"}) == Decoded([5, 6, 7], 0.5, 0.02)


@pytest.mark.parametrize("title", RUNTIMES)
def test_every_runtime_has_an_environment_and_a_server(title: str) -> None:
    runtime = RUNTIMES[title]
    assert (HERE / f"{runtime.environment}.txt").is_file()
    assert (HERE / f"{runtime.server}.py").is_file()


def test_name_has_a_format_and_a_draft_method() -> None:
    name = Name.parse("xllamacpp:q4_0+eagle3")
    assert (name.runtime, name.format, name.method) == (RUNTIMES["xllamacpp"], "q4_0", "eagle3")


@pytest.mark.parametrize(
    ("name", "weights"),
    [("xllamacpp", "a.gguf"), ("xllamacpp:q4_0", "work/q4_0.gguf"), ("onnxruntime-genai", "a.gguf"),
     ("onnxruntime-genai:int4", None), ("vllm", "a.gguf")],
)  # fmt: skip
def test_weights_of_a_peer_are_a_file_or_its_own(name: str, weights: str | None) -> None:
    found = Name.parse(name).weights(Path("a.gguf"), Path("work"))
    assert found == (Path(weights) if weights else None)


def test_drafts_of_a_head_need_that_head(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="needs a head for peagle"):
        command_of("vllm+peagle", tmp_path, tmp_path, 2, 4, {"eagle3": tmp_path})
