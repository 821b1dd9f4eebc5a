"""The Python API: the command line's options as typed arguments, its results and errors, and no output."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import peagle
from peagle.compiler import api
from peagle.compiler.bench.measure import take_turns
from peagle.compiler.bench.options import BenchOptions
from peagle.compiler.bench.result import BenchResult
from peagle.compiler.console.progress import Advance, Quiet
from peagle.compiler.request.verb_options import BUILD, EXPORT, QUANTIZE, VerbOptions
from peagle.compiler.verbs import drafter as drafter_verbs
from peagle.compiler.verbs.bench import bench as bench_verb
from peagle.compiler.verbs.verify import verify as verify_verb
from peagle.compiler.verify.verify_path import VerifyOptions
from peagle.plugins.errors import EnvironmentProblem
from tests.models import Pair

FORMS: dict[str, tuple[Callable[..., Any], VerbOptions]] = {
    "build": (api.build, BUILD), "export": (api.export, EXPORT), "quantize": (api.quantize, QUANTIZE),
}  # fmt: skip
RESERVED = {"from": "from_export", "for": "lowering"}  # Python arguments, named as in an options file
OF_EVERY_VERB = ["force", "ignore_limits", "progress"]
SMALL = {"max_seq_len": 64, "num_speculative_tokens": 2, "backend": "onnxruntime"}


@pytest.mark.parametrize("verb", FORMS)
def test_every_verb_option_is_an_argument_named_like_its_flag(verb: str) -> None:
    function, form = FORMS[verb]
    flags = [entry.option.flag.removeprefix("--").replace("-", "_") for entry in form]
    assert [*inspect.signature(function).parameters] == [*(RESERVED.get(flag, flag) for flag in flags), *OF_EVERY_VERB]


@pytest.mark.parametrize("verb", FORMS)
def test_arguments_have_the_types_and_defaults_of_the_options(verb: str) -> None:
    function, form = FORMS[verb]
    hints = get_type_hints(function, localns=dict.fromkeys(("BuildResult", "ExportResult", "QuantizeResult"), object))
    parameters = inspect.signature(function).parameters
    for entry, (name, parameter) in zip(form, parameters.items(), strict=False):
        accepted = {hints[name], *get_args(hints[name])}
        wanted = {*(get_args(entry.type) or [entry.type])} - {types.NoneType, ...}
        assert wanted <= accepted | ({Path} if str in accepted else set()), name
        if name not in ("model", "out"):
            assert parameter.default == entry.default, name


def test_every_argument_of_a_function_without_reference_to_another_is_documented() -> None:
    for function in (api.build, api.add_drafter, api.verify, api.bench):
        described = inspect.getdoc(function) or ""
        assert [name for name in inspect.signature(function).parameters if f"\n    {name}: " not in described] == []


def test_verify_has_its_verbs_arguments_and_defaults() -> None:
    own = {name: parameter.default for name, parameter in inspect.signature(api.verify).parameters.items()}
    verb = {*inspect.signature(verify_verb).parameters} - {"as_json", "quiet", "verbose", "log"}
    assert {*own} - {"progress"} == verb
    options = VerifyOptions()
    assert {name: getattr(options, name) for name in own if hasattr(options, name)} == {
        name: value for name, value in own.items() if hasattr(options, name)
    }


def test_bench_has_its_verbs_arguments_and_defaults() -> None:
    own = {name: parameter.default for name, parameter in inspect.signature(api.bench).parameters.items()}
    verb = {*inspect.signature(bench_verb).parameters} - {"as_json", "quiet", "verbose", "log"}
    assert {*own} - {"progress"} == verb
    options = BenchOptions()
    assert {name: value for name, value in own.items() if hasattr(options, name)} == {
        name: getattr(options, name) for name in own if hasattr(options, name)
    }


def test_drafters_have_their_verbs_arguments_and_defaults() -> None:
    for function, verb in (
        (api.add_drafter, drafter_verbs.drafter_add),
        (api.list_drafters, drafter_verbs.drafter_list),
        (api.remove_drafter, drafter_verbs.drafter_remove),
    ):
        flags = {*inspect.signature(verb).parameters} - {"as_json", "quiet", "verbose", "log"}
        assert {*inspect.signature(function).parameters} - {"progress"} == flags


def test_a_drafter_is_added_listed_and_removed(
    tiny_folder: Path, eagle3_pair: Pair, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = Path(shutil.copytree(tiny_folder, tmp_path / "engine"))
    taps = peagle.Engine.load(engine, threads=1).manifest.shapes.taps
    added = peagle.add_drafter(str(engine), eagle3_pair.head, name="new", taps=taps, mask_token_id=None)
    assert [each.name for each in peagle.list_drafters(engine)] == ["built-in", added.name]
    with pytest.raises(peagle.UsageError, match="--taps x: invalid layer ids"):
        peagle.add_drafter(engine, eagle3_pair.head, name="other", taps="x")
    assert peagle.remove_drafter(engine, "new").record == added.record
    assert capfd.readouterr() == ("", "")


def test_bench_returns_its_figures_and_writes_only_named_files(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = {"workload": "random", "num_prompts": 1, "max_tokens": 6, "draft": "ngram", "threads": 1}
    result = peagle.bench(tiny_folder, **asked)
    assert [each.mode for each in result.figures] == ["plain", "n-gram lookup, K = 4"]
    assert [*tmp_path.iterdir()] == []
    peagle.bench([tiny_folder], out="b.json", html="b.html", **asked)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.html", "b.json"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (EnvironmentProblem("cannot reach http://x"), "cannot reach http://x"),
        (KeyboardInterrupt(), "it was interrupted"),
    ],
)
def test_bench_that_ends_early_keeps_the_finished_turns_in_the_named_files(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str
) -> None:
    def failing(modes: Any, groups: Any, repeats: Any, levels: Any, advance: Any) -> None:
        take_turns(modes, groups[:1], 1, levels, advance)
        raise error

    monkeypatch.setattr("peagle.compiler.bench.run.take_turns", failing)
    asked = {"workload": "random", "num_prompts": 2, "max_tokens": 6, "draft": "ngram", "threads": 1}
    with pytest.raises(type(error)) as raised:
        peagle.bench(tiny_folder, out=tmp_path / "b.json", html=tmp_path / "b.html", **asked)
    assert raised.value is error
    found = BenchResult.read(tmp_path / "b.json")
    assert {each.turns for each in found.figures} == {1}
    assert f"the measurement ended early: {said}" in found.notes
    assert said in (tmp_path / "b.html").read_text()


@pytest.mark.parametrize(("temperature", "named"), [(0.8, [None]), ([0, 0.8], [0, 0.8])])
def test_bench_takes_one_or_several_temperatures(tiny_folder: Path, temperature: object, named: list[object]) -> None:
    asked = {"workload": "random", "num_prompts": 1, "max_tokens": 6, "draft": "ngram", "threads": 1}
    result = peagle.bench(tiny_folder, temperature=temperature, **asked)
    assert [figures[0].temperature for figures in result.levels] == named
    assert result.identical


def test_build_returns_the_engine_and_prints_nothing(
    tiny_pair: Pair, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    built = peagle.build(str(tiny_pair.target), draft=str(tiny_pair.head), out=tmp_path / "engine", **SMALL)
    assert built.path == tmp_path / "engine"
    assert built.manifest.speculation.num_speculative_tokens == 2
    assert isinstance(built.report["warnings"], list)
    checked = peagle.verify(built.path, prompts=2, max_tokens=8, num_speculative_tokens=[2], only="losslessness")
    assert checked.passed
    with peagle.Engine.load(built.path) as engine:
        (output,) = engine.generate([[5, 9, 30]], peagle.SamplingParams(max_tokens=4))
    assert len(output.token_ids) == 4
    assert capfd.readouterr() == ("", "")


def test_an_export_returns_its_folder(tiny_pair: Pair, tmp_path: Path) -> None:
    made = peagle.export(
        str(tiny_pair.target), draft=str(tiny_pair.head), out=tmp_path / "onnx", lowering="std", max_seq_len=64
    )
    assert made.path == tmp_path / "onnx"
    assert (made.path / "target" / "model.onnx").is_file()
    assert made.report["for"] == "std"


class Told(Quiet):
    """Progress that records its calls."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def step(self, text: str, total: int | None = None) -> AbstractContextManager[Advance]:
        self.steps.append(text)
        return super().step(text, total)


def test_progress_callback_gets_each_step(tiny_pair: Pair, tmp_path: Path) -> None:
    told = Told()
    peagle.build(str(tiny_pair.target), draft="none", out=tmp_path / "engine", max_seq_len=64, progress=told)
    assert "read checkpoints" in told.steps


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"precision": "fp7"}, "fp7"), ({"backend": "cuda"}, "cuda"), ({"max_seq_len": "long"}, "long"),
        ({"num_speculative_tokens": -1}, "below 0"), ({"taps": [0.5]}, "taps"), ({"gpu": 90}, "gpu"),
        ({"calib_samples": 0}, "calib_samples"), ({"out": 3}, "out"), ({"draft": "none", "taps": [1]}, "--taps"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_the_error_of_the_command_line(
    tiny_pair: Pair, tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(peagle.UsageError, match=said):
        peagle.build(**{"model": str(tiny_pair.target), "out": tmp_path / "engine"} | arguments)
    assert not (tmp_path / "engine").exists()


def test_a_build_needs_a_model() -> None:
    with pytest.raises(peagle.UsageError, match="no model was specified"):
        peagle.build()


def test_a_wrong_argument_of_verify_is_refused(demo_engine: Path) -> None:
    for arguments, said in (
        ({"only": ["losslesness"]}, "losslesness"),
        ({"num_speculative_tokens": [0]}, "of 1 or more"),
    ):
        with pytest.raises(peagle.UsageError, match=said):
            peagle.verify(demo_engine, **arguments)


def test_engines_run_without_build_packages() -> None:
    script = "import sys, peagle; peagle.Engine, peagle.SamplingParams, peagle.UsageError; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.startswith(("peagle.compiler", "torch", "onnx.", "typer"))]


def test_all_names_of_the_package_exist() -> None:
    assert sorted(peagle.__all__) == peagle.__all__
    assert all(getattr(peagle, name) is not None for name in peagle.__all__)
    with pytest.raises(AttributeError, match="no attribute 'bild'"):
        peagle.bild  # noqa: B018


def test_the_package_runs_as_the_program() -> None:
    done = subprocess.run([sys.executable, "-m", "peagle", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, version("peagle-compile"))
