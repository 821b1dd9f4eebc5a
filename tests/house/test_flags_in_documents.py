"""Every option that a document names exists: of our program by its verb, of our scripts by their source, or of others.

An option behind ``peagle-compile VERB`` or `` `VERB --option` `` must be one of that verb, and one behind a script of
ours one of that script. Anywhere else it may be one of any verb or script. Options of other programs are listed here,
and are known on pages that name the program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.house.test_documents import documents
from tests.house.tree import ROOT, require

Verbs = Mapping[str, frozenset[str]]

FOREIGN = {
    "aiperf": "--url --endpoint-type --custom-endpoint --streaming --extra-inputs --tokenizer --input-file "
    "--custom-dataset-type --concurrency --warmup-request-count --request-count --no-gpu-telemetry --ui "
    "--server-metrics --server-metrics-formats --artifact-dir",
    "guidellm": "--backend --profile --constraint --tokenizer --data --output",
    "vllm": "--base-url --model --tokenizer --backend --endpoint --dataset-name --random-input-len --random-output-len "
    "--num-prompts --max-concurrency --ignore-eos",
    "convert_checkpoint.py": "--model_dir",
    "curl": "--no-buffer --retry --retry-delay --retry-connrefused --fail --max-time",
    "docker": "--rm --read-only --build-arg --time --target --user",
    "llama-server": "--parallel --no-cache-prompt",
    "hypothesis": "--hypothesis-profile",
    "nsys": "--trace --cuda-graph-trace",
    "polygraphy": "--fold-constants --onnxrt --onnx-outputs --data-loader-script --model-type --trt-config-script "
    "--plugins",
    "pytest": "--attacks --seed",
    "quantize.py": "--model_dir --qformat --kv_cache_dtype --calib_size --output_dir",
    "run.py": "--engine_dir",
    "sglang": "--speculative-adaptive",
    "systemd-run": "--scope",
    "trtexec": "--dynamicPlugins --staticPlugins",
    "trtllm-build": "--checkpoint_dir --max_batch_size --max_seq_len --output_dir --speculative_decoding_mode "
    "--max_draft_len --dry_run --build_config",
    "trtllm-serve": "--extra_llm_api_options",
    "venv": "--system-site-packages",
    "vllm serve": "--no-enable-prefix-caching",
}
SCRIPTS = ("tools/**/*.py", "benchmarks/**/*.py", "examples/**/*.py", "plugins/**/__main__.py", ".ci/*.py")

_FLAG = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")
_REST = r"(?P<rest>[^`|;&\n]*)"
_SCRIPT = re.compile(r"(?P<path>(?:tools|benchmarks|examples)/[\w/-]+\.py)" + _REST)


def _verbs() -> dict[str, frozenset[str]]:
    """The options of every verb, those of ``cache prune`` by that name."""
    import typer

    from peagle.compiler.verbs.program import app

    def walk(command: object, name: str) -> Iterator[tuple[str, frozenset[str]]]:
        flags = (flag for each in command.params for flag in (*each.opts, *each.secondary_opts))  # type: ignore[attr-defined]
        yield name, frozenset({*flags, "--help"})
        for verb, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, f"{name} {verb}".strip())

    return dict(walk(typer.main.get_command(app), ""))


@cache
def _flags_of(script: Path) -> frozenset[str]:
    """The options that a script defines, including those composed from names in a loop (``f"--{name}"``)."""
    text = script.read_text()
    made = re.findall(r'"([a-z][a-z-]*)"', text) if 'f"--{' in text else []
    return frozenset(re.findall(r"""["'](--[a-z][\w-]*)["']""", text)) | {f"--{name}" for name in made}


def wrong_flags(text: str, verbs: Verbs, scripts: Mapping[str, frozenset[str]]) -> list[str]:
    """The options in a text that what stands before them does not have, and those that nothing has."""
    text = text.replace("\\\n", " ")
    foreign = {flag for program, flags in FOREIGN.items() if program in text.lower() for flag in flags.split()}
    called = {name for name in verbs if name}
    names = "|".join(sorted(map(re.escape, called), key=len, reverse=True))
    ours = re.compile(rf"(?:peagle-compile (?P<verb>{names})\b|`(?P<short>{names})(?= --)){_REST}")
    wrong = []
    for match in ours.finditer(text):
        verb = match["verb"] or match["short"]
        has = verbs[verb] | (foreign if match["short"] else set())  # of another program with such a verb
        wrong += [f"{verb} {flag}" for flag in _FLAG.findall(match["rest"]) if flag not in has]
    for match in _SCRIPT.finditer(text):
        if match["path"] in scripts:
            has = scripts[match["path"]]
            wrong += [f"{match['path']} {flag}" for flag in _FLAG.findall(match["rest"]) if flag not in has]
    known = foreign.union(*verbs.values(), *scripts.values())
    return [*wrong, *(flag for flag in _FLAG.findall(text) if flag not in known)]


def test_every_option_that_a_document_names_exists() -> None:
    verbs = _verbs()
    paths = [path for pattern in SCRIPTS for path in ROOT.glob(pattern)]
    scripts = {path.relative_to(ROOT).as_posix(): _flags_of(path) for path in paths}
    require(
        f"{page.relative_to(ROOT)} names {flag}, which does not exist"
        for page in documents(ROOT)
        for flag in wrong_flags(page.read_text(), verbs, scripts)
    )


def test_every_foreign_option_is_named_somewhere() -> None:
    pages = [page.read_text() for page in documents(ROOT)]
    require(
        f"no document that names {program} names {flag}"
        for program, flags in FOREIGN.items()
        for flag in flags.split()
        if not any(program in text.lower() and flag in text for text in pages)
    )


def test_an_option_that_does_not_exist_is_found() -> None:
    verbs = {"": frozenset({"--help"}), "build": frozenset({"--out", "--help"}), "serve": frozenset({"--port"})}
    scripts = {"tools/a.py": frozenset({"--windows"}), "tools/b.py": frozenset({"--json"})}

    def found(text: str) -> list[str]:
        return wrong_flags(text, verbs, scripts)

    good = "`peagle-compile build M --out x` and `serve --port 1`; `--windows`, `python tools/a.py x --windows 8`"
    assert found(f"{good} | a---b, 2 -- 3; `curl --retry 3 x`") == []
    assert found("`build --no-such-option`") == ["build --no-such-option", "--no-such-option"]
    assert found("peagle-compile build M \\\n  --port 1") == ["build --port"]
    assert found("python tools/a.py --json | cat --out") == ["tools/a.py --json"]
    assert found("`--retry`") == ["--retry"], "curl is not named"
