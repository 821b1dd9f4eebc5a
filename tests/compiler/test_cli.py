"""The command line: output of each command, and the exit of every failure."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler import cli as program
from peagle.compiler.console.printing import Interrupted, columns, interruptible, report_failure, size
from peagle.compiler.verbs.program import EXIT_CODES
from peagle.compiler.verify import losslessness
from peagle.compiler.verify import verify_engine as verification
from peagle.plugins import errors
from tests.fixtures.commands import Run

VERBS = ("build", "run", "verify", "bench", "inspect", "models", "doctor")


def test_help_lists_the_verbs_and_the_exit_codes(cli: Run) -> None:
    for arguments in (["--help"], ["-h"], []):
        done = cli(*arguments)
        assert done.code == 0
        assert all(verb in done.out for verb in VERBS)
        assert "130 interrupted" in " ".join(done.out.split())


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example_and_json(cli: Run, verb: str) -> None:
    done = cli(verb, "--help")
    text = " ".join(done.out.split())
    assert done.code == 0
    assert f"Example: peagle-compile {verb}" in text
    assert "--json" in text
    assert "Exit codes:" in text
    assert "MODEL-engine" in text or verb != "build"


def test_the_documented_exit_codes_are_the_ones_in_use() -> None:
    documented = {int(code) for code in re.findall(r"\b\d+\b", EXIT_CODES)}
    kinds = [errors.UsageError, errors.EnvironmentProblem, errors.VerificationError, errors.BuildError]
    assert documented == {0, 1, *(kind.exit_code for kind in kinds), Interrupted.exit_code, 128}  # 128 + N: a signal


def test_the_version_is_printed(cli: Run) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", cli("--version").out)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["bild"], "Did you mean 'build'"),
        (["build", "--modell", "demo"], "--model"),
        (["build", "--max-seq-len", "many"], "--max-seq-len"),
        (["build"], "no model was specified"),
        (["build", "demo", "--model", "other"], "given twice"),
        (["run"], "ENGINE"),
        (["run", "engine", "text", "--prompt", "text"], "two prompts"),
        (["verify", "engine", "--num-speculative-tokens", "1,x"], "not a list of numbers"),
        (["verify", "engine", "--num-speculative-tokens", "0"], "not a list of numbers"),
    ],
)
def test_wrong_usage_is_explained(cli: Run, arguments: list[str], hint: str) -> None:
    done = cli(*arguments)
    assert done.code == 2
    assert hint in done.err
    assert done.out == ""


def test_an_error_is_one_json_object_on_standard_error(cli: Run) -> None:
    done = cli("build", "dmeo", "--json")
    error = json.loads(done.err)["error"]
    assert done.out == ""
    assert (done.code, error["exit_code"], error["type"]) == (2, 2, "UsageError")
    assert "demo" in error["why"]
    assert error["fix"]


@pytest.mark.parametrize("verb", ["run", "verify", "inspect"])
def test_non_engine_is_rejected(cli: Run, verb: str, tmp_path: Path) -> None:
    done = cli(verb, tmp_path, *(["--prompt", "x"] if verb == "run" else []))
    assert done.code == 3
    assert "is not an engine folder" in done.err


def test_models_lists_all_names(cli: Run) -> None:
    text = cli("models").out
    found = {pair["name"]: pair for pair in json.loads(cli("models", "--json").out)}
    assert set(found) == {
        "demo", "smollm2-135m", "qwen3-coder-30b", "qwen3-coder-30b-fp8", "gpt-oss-20b", "gpt-oss-120b", "gemma-4-31b",
        "gemma-4-26b-a4b",
    }  # fmt: skip
    for name, pair in found.items():
        assert name in text
        assert ", ".join(map(str, pair["taps"])) in text
        assert all(note in text for note in pair["notes"])
    assert found["demo"]["trained_depth"] == 8
    assert found["demo"]["evidence"][0][0] == "parity"
    assert found["gpt-oss-20b"]["evidence"] == []
    assert found["gpt-oss-20b"]["target"] == {"repo": "openai/gpt-oss-20b", "revision": None, "otherwise": None}
    assert "Revisions are not pinned" in text


def test_run_streams_text_and_reports_on_the_side(cli: Run, demo_engine: Path) -> None:
    drafts = ("--num-speculative-tokens", 4)  # by default none if they do not pay, as on a busy machine
    done = cli("run", demo_engine, "--prompt", "def gcd(a, b):", "--max-tokens", 24, "--stats", *drafts)
    assert done.code == 0
    assert done.out.strip()
    assert "tokens per round" in done.err
    plain = cli("run", demo_engine, "def gcd(a, b):", "--max-tokens", 24, "--num-speculative-tokens", 0)
    assert plain.out == done.out
    assert plain.err == ""


def test_run_as_json_prints_the_whole_result(cli: Run, demo_engine: Path) -> None:
    options = ["--max-tokens", 16, "--temperature", 0.8, "--seed", 3, "--ignore-eos"]
    results = [
        json.loads(cli("run", demo_engine, "--prompt", "import os", *options, *more, "--json").out)
        for more in ([], ["--num-speculative-tokens", 0], ["--num-speculative-tokens", 8])
    ]
    assert len({result["text"] for result in results}) == 1
    assert len(results[0]["token_ids"]) == 16
    assert results[0]["seed"] == 3
    assert results[2]["acceptance"]["rounds"] > 0
    assert results[1]["acceptance"]["drafted"] == 0


def test_run_reads_the_prompt_from_standard_input(cli: Run, demo_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"import os\n")))
    read, said = (
        json.loads(cli("run", demo_engine, *prompt, "--max-tokens", 8, "--json").out) for prompt in ((), ("import os",))
    )
    assert read["token_ids"] == said["token_ids"]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--prompt", ""], "prompt is empty"),
        (["--prompt", "x = 1\n" * 2000], "this model's maximum context length is"),
        (["--prompt", "x", "--num-speculative-tokens", -1], "num_speculative_tokens"),
        (["--prompt", "x", "--num-speculative-tokens", 99], "num_speculative_tokens"),
        (["--prompt", "x", "--temperature", -1], "temperature"),
        (["--prompt", "x", "--max-tokens", 0], "max_tokens"),
    ],
)
def test_prompts_and_policies_that_cannot_run_are_refused(
    cli: Run, demo_engine: Path, arguments: list[Any], hint: str
) -> None:
    done = cli("run", demo_engine, *arguments)
    assert done.code == 2
    assert hint in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    "name", ["target/model.onnx", "target/model.onnx.data", "drafter/model.onnx", "tokenizer.json"]
)
def test_a_tampered_engine_is_refused_before_it_is_loaded(cli: Run, engine: Path, name: str) -> None:
    content = bytearray((engine / name).read_bytes())
    content[len(content) // 2] ^= 1
    (engine / name).chmod(0o644)
    (engine / name).write_bytes(content)
    for verb in (["run", engine, "--prompt", "x"], ["inspect", engine], ["verify", engine]):
        done = cli(*verb)
        assert done.code == 3
        assert name in done.err
        assert "copy the whole folder again" in done.err


def test_inspect_shows_the_contract(cli: Run, demo_engine: Path) -> None:
    found = json.loads(cli("inspect", demo_engine, "--json").out)
    assert found["target"]["inputs"][0] == "input_ids"
    assert found["operators"]["target"]
    assert found["backend"]["name"] == "onnxruntime"
    text = cli("inspect", demo_engine).out
    assert "trained for 8" in text
    assert "target/model.onnx.data" in text


def test_inspect_works_without_onnx(cli: Run, demo_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from peagle.compiler.pipeline.reports import engine_contents as inspect

    monkeypatch.setattr(inspect, "is_installed", lambda name: False)
    assert json.loads(cli("inspect", demo_engine, "--json").out)["operators"] == {"target": None, "drafter": None}


def test_verify_passes_on_the_demo_engine(cli: Run, engine: Path) -> None:
    done = cli("verify", engine, "--prompts", 2, "--max-tokens", 12, "--json")
    found = json.loads(done.out)
    assert done.code == 0
    assert found["passed"]
    assert found["losslessness"]["tokens_compared"] == 2 * 12 * 5 * 2
    assert [check["status"] for check in found["parity"]] == ["passed", "passed"]
    assert found["precision"] is None
    assert json.loads((engine / "verify.json").read_text()) == found
    assert "verify.json" in cli("inspect", engine).out


def test_verify_fails_when_speculation_changes_a_token(cli: Run, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = losslessness._generate

    def lossy(engine: Any, prompts: Any, params: Any, k: int, draft: str | None = None) -> Any:
        return generate(engine, [ids[:5] if k == 5 else ids for ids in prompts], params, 0)

    monkeypatch.setattr(losslessness, "_generate", lossy)
    monkeypatch.setattr(verification, "compare_with_sources", lambda *_: ())
    done = cli("verify", engine, "--prompts", 1, "--max-tokens", 8)
    assert done.code == 4
    assert "tokens differ" in done.err
    assert "FAILED" in done.out
    written = json.loads((engine / "verify.json").read_text())
    assert not written["passed"]
    assert {d["k"] for d in written["losslessness"]["divergences"]} == {5}


def test_internal_error_is_one_line_with_a_hint(
    cli: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from peagle.compiler.verbs import diagnosis

    def broken() -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(diagnosis, "diagnose", broken)
    done = cli("doctor")
    assert done.code == 1
    assert "unexpected ZeroDivisionError: division by zero" in done.err
    assert "PEAGLE_TRACEBACK=1" in done.err
    monkeypatch.setenv("PEAGLE_TRACEBACK", "1")
    assert program.run_cli(["doctor"]) == 1
    assert "Traceback" in capfd.readouterr().err


def test_ctrl_c_reports_what_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    @interruptible("nothing was changed")
    def verb() -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        verb()
    assert report_failure(caught.value, as_json=False) == 130
    assert "interrupted" in capsys.readouterr().err


def test_control_characters_of_an_error_do_not_reach_the_terminal(cli: Run) -> None:
    err = cli("inspect", "a\x1b[31mb\x07 ü").err
    assert "error: a\\x1b[31mb\\x07 ü is not an engine folder\n" in err


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from peagle.compiler.cli import run_cli; run_cli(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"numpy", "onnxruntime", "onnx", "torch", "transformers", "tokenizers", "huggingface_hub"}


def test_text_is_aligned_and_sizes_are_readable() -> None:
    assert columns([("a", 1), ("long", 2)]) == "a     1\nlong  2"
    assert [size(n) for n in (0, 999, 1500, 2_500_000, 61_060_000_000)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.5 MB",
        "61.1 GB",
    ]
