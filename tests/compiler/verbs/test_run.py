"""The prompt of ``run``: its source, and the error for a prompt that is not text."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from tests.fixtures.commands import Run


def pipe(monkeypatch: pytest.MonkeyPatch, content: bytes, encoding: str = "utf-8") -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding))


def test_non_utf8_stdin_is_reported(cli: Run, demo_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"def f\xff\xfe(")
    done = cli("run", demo_engine, "--max-tokens", 4)
    assert done.code == 2
    assert "standard input is not UTF-8: byte 5 is 0xff" in done.err


def test_non_utf8_argument_is_reported(cli: Run, demo_engine: Path) -> None:
    for arguments, name in ((["--prompt", "d\udcffef"], "--prompt"), (["d\udcffef"], "the prompt")):
        done = cli("run", demo_engine, *arguments)
        assert done.code == 2
        assert f"{name} is not UTF-8: byte 1 is 0xff" in done.err
    assert cli("run", demo_engine, "--prompt", "\ud800").code == 2
    assert "stop" in cli("run", demo_engine, "--prompt", "x", "--stop", "\udcff").err


def test_prompt_is_utf8_in_any_locale(cli: Run, demo_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    for encoding in ("utf-8", "ascii"):
        pipe(monkeypatch, "# 漢字\r\n".encode(), encoding)
        said.append(json.loads(cli("run", demo_engine, "--max-tokens", 4, "--json").out)["token_ids"])
    as_bytes = "# 漢字".encode().decode("ascii", "surrogateescape")  # an argument where the locale knows ASCII only
    for prompt in ("# 漢字", as_bytes):
        done = cli("run", demo_engine, "--prompt", prompt, "--max-tokens", 4, "--json")
        said.append(json.loads(done.out)["token_ids"])
    assert said == [said[0]] * 4


@pytest.mark.parametrize(
    ("piped", "prompt"),
    [
        (b"def gcd(\n", "def gcd("),
        (b"def gcd(\r\n", "def gcd("),
        (b"def gcd(", "def gcd("),
        (b"def gcd(\n\n", "def gcd(\n"),
        (b"\ndef gcd( \n", "\ndef gcd( "),
    ],
)
def test_a_piped_prompt_is_the_typed_one_without_the_final_newline_of_echo(
    cli: Run, demo_engine: Path, monkeypatch: pytest.MonkeyPatch, piped: bytes, prompt: str
) -> None:
    pipe(monkeypatch, piped)
    options = ("--max-tokens", 4, "--json")
    from_pipe = json.loads(cli("run", demo_engine, *options).out)
    typed = json.loads(cli("run", demo_engine, "--prompt", prompt, *options).out)
    assert (from_pipe["prompt_tokens"], from_pipe["token_ids"]) == (typed["prompt_tokens"], typed["token_ids"])


def test_lone_newline_on_stdin_is_refused(cli: Run, demo_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"\n")
    done = cli("run", demo_engine)
    assert done.code == 2
    assert "prompt is empty" in done.err


def test_without_standard_input_a_prompt_must_be_given(
    cli: Run, demo_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    done = cli("run", demo_engine)
    assert done.code == 2
    assert "no prompt was given" in done.err


def test_unreadable_stdin_is_reported(
    cli: Run, demo_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptor = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    with open(descriptor, encoding="utf-8") as handle:
        monkeypatch.setattr(sys, "stdin", handle)
        done = cli("run", demo_engine)
    assert done.code == 2
    assert "standard input cannot be read" in done.err


def test_a_pipe_without_end_is_not_read_for_ever(cli: Run, demo_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/zero").open() as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        done = cli("run", demo_engine)
    assert done.code == 2
    assert "standard input is longer than 64 MiB" in done.err


@pytest.mark.parametrize(
    ("option", "value"),
    [("--top-k", 3_000_000_000), ("--seed", 2**64), ("--temperature", 1e-40), ("--max-tokens", 2**70)],
)
def test_numbers_beyond_the_types_of_the_graph_are_policies_too(
    cli: Run, demo_engine: Path, option: str, value: float
) -> None:
    options = ["--prompt", "def main():\n    return", "--temperature", 1, "--max-tokens", 4, "--seed", 1, option, value]
    assert cli("run", demo_engine, *options).code == 0


def test_more_threads_than_any_machine_has_use_for_are_refused(cli: Run, demo_engine: Path) -> None:
    done = cli("run", demo_engine, "--prompt", "x", "--threads", 1_000_000)
    assert done.code == 2
    assert "threads must be an integer from 1 to" in done.err


def test_a_policy_is_refused_before_the_engine_is_looked_at(cli: Run, tmp_path: Path) -> None:
    done = cli("run", tmp_path / "absent", "--prompt", "x", "--top-p", 2)
    assert done.code == 2
    assert "top_p" in done.err


def test_lossy_output_is_always_labelled(cli: Run, demo_engine: Path) -> None:
    asked = ("run", demo_engine, "--prompt", "def add(", "--max-tokens", 24, "--ignore-eos")
    asked += ("--num-speculative-tokens", 3)
    lossy = "lossy: with an acceptance tolerance of 0.9"
    assert lossy in cli(*asked, "--acceptance-tolerance", 0.9).err
    assert lossy in cli(*asked, "--acceptance-tolerance", 0.9, "--stats").err
    told = json.loads(cli(*asked, "--acceptance-tolerance", 0.9, "--json").out)["acceptance"]
    assert (told["lossy"], told["tolerance"]) == (True, 0.9)
    exact = cli(*asked, "--stats", "--json")
    assert "lossy" not in exact.err
    assert json.loads(exact.out)["acceptance"]["lossy"] is False


def test_sampling_parameters_without_a_flag_are_given_by_their_names(cli: Run, demo_engine: Path) -> None:
    asked = ("run", demo_engine, "--prompt", "def add(", "--max-tokens", 6, "--ignore-eos", "--json")
    free = json.loads(cli(*asked).out)
    done = cli(*asked, "--sampling", '{"logprobs": 1, "prompt_logprobs": 0, "logit_bias": {"40": 100}}')
    told = json.loads(done.out)
    assert set(told["token_ids"]) == {40}
    assert len(told["logprobs"]) == 6
    assert told["prompt_logprobs"][0] is None
    assert len(told["prompt_logprobs"]) == told["prompt_tokens"]
    stopped = json.loads(cli(*asked, "--stop-token-id", free["token_ids"][3]).out)
    assert stopped["finish_reason"] == "stop"
    assert stopped["stop_reason"] == free["token_ids"][3]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("{", "--sampling is not valid JSON"),
        ("[" * 9999, "--sampling is not valid JSON"),
        ('{"min_tokens": 1, "min_tokens": 2}', "--sampling is not valid JSON: the key 'min_tokens' appears twice"),
        ("3", "--sampling is not a JSON object"),
        ('{"stop": "a"}', "stop has its own flag"),
        ('{"precence_penalty": 1}', "did you mean presence_penalty"),
        ('{"zzzz": 1}', "use one of allowed_token_ids"),
        ('{"presence_penalty": NaN}', "presence_penalty must be"),
        ('{"logit_bias": {"a": 1}}', "a token id of logit_bias"),
        ('{"logprobs": 1e400}', "logprobs must be"),
        ("\ud800", "--sampling"),
    ],
)
def test_invalid_sampling_parameters_are_refused(cli: Run, demo_engine: Path, given: str, says: str) -> None:
    done = cli("run", demo_engine, "--prompt", "x", "--sampling", given)
    assert done.code == 2
    assert says in done.err


def test_json_of_a_schema_is_written_and_a_file_that_has_none_is_refused(
    cli: Run, demo_engine: Path, tmp_path: Path
) -> None:
    pytest.importorskip("llguidance")
    schema = tmp_path / "schema.json"
    schema.write_text(
        json.dumps(
            {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
        )
    )
    asked = ["--prompt", "def f", "--max-tokens", 200, "--sampling", '{"logit_bias": {}}', "--json-schema"]
    written = cli("run", demo_engine, *asked, schema).out
    assert json.loads(written)["n"] in (1, 2)
    for wrong, said in (
        (b"{", "is not valid JSON"),
        (b"\xff", "is not UTF-8"),
        (b'{"type": "strin"}', "cannot be compiled"),
    ):
        schema.write_bytes(wrong)
        done = cli("run", demo_engine, *asked, schema)
        assert done.code == 2
        assert said in done.err
    assert "--json-schema" in cli("run", demo_engine, *asked, tmp_path).err
    done = cli("run", demo_engine, "--prompt", "x", "--json-schema", schema, "--sampling", '{"structured_outputs": {}}')
    assert "both set an output format" in done.err
