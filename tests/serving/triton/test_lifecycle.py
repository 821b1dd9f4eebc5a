"""Models of a real server: unloaded, loaded again, several at once, and refused at load."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from peagle.compiler.cli import run_cli
from peagle.engines import Engine, SamplingParams
from peagle.engines.folder.manifest import FILE_NAME, Manifest
from peagle.engines.folder.records import BackendRecord, PlanRecord, PlanTensor, Profile
from tests.serving.triton.server_process import TritonProcess

pytestmark = pytest.mark.triton

PROMPT = "def gcd(a, b):"


def write(engine: Path, repository: Path, name: str, *flags: str) -> Path:
    """Write the models of an engine into a repository; returns the folder of the first."""
    command = ["triton", str(engine), "--repository", str(repository), "--name", name, "--threads", "1", "--quiet"]
    assert run_cli([*command, *flags]) == 0
    return repository / name


def wanted(engine: Engine) -> str:
    """What every model here has to answer."""
    return engine.generate([PROMPT], SamplingParams(max_tokens=12))[0].text


def answered(server: TritonProcess, model: str) -> str:
    """What a model answers."""
    return server.stream(model, text_input=PROMPT, max_tokens=12).text


def test_a_model_is_unloaded_and_loaded_again(
    triton: TritonProcess, triton_repository: Path, talking_engine: Path, served_engine: Engine
) -> None:
    write(talking_engine, triton_repository, "again", "--link")
    for number in range(8):  # what was unloaded is still ending while the next is loaded
        assert triton.load("again").status == 200
        assert answered(triton, "again") == wanted(served_engine)
        assert answered(triton, "demo") == wanted(served_engine)
        written = functools.partial(triton.counted, "request_success_total", "again", finished_reason="length")
        triton.wait_until(lambda count=number, written=written: written() > count)
        assert triton.unload("again").status == 200
        assert triton.stream("again", text_input=PROMPT).status in (400, 404)
    assert triton.counted("request_success_total", "again", finished_reason="length") == 8
    for name in ("again", "demo"):
        triton.wait_until(lambda name=name: triton.counted("num_requests_running", name) == 0)


def test_unloaded_model_finishes_its_requests(
    triton: TritonProcess, triton_repository: Path, talking_engine: Path
) -> None:
    write(talking_engine, triton_repository, "leaving", "--link")
    assert triton.load("leaving").status == 200
    stream = triton.events("leaving", text_input=PROMPT, max_tokens=64, ignore_eos=True)
    text = next(stream)["text_output"]
    triton.unload("leaving")
    events = list(stream)
    assert "finish_reason" in events[-1] or "error" in events[-1], (text, events)


def test_a_copy_of_an_engine_answers_as_the_engine_does(
    triton: TritonProcess, triton_repository: Path, demo_engine: Path, served_engine: Engine
) -> None:
    model = write(demo_engine, triton_repository, "copied")
    assert (model / "1" / "engine" / "engine.json").is_file()
    assert triton.load("copied").status == 200
    assert answered(triton, "copied") == wanted(served_engine)
    triton.unload("copied")


def _older_runtime(engine: Path, _: Path) -> None:
    manifest = Manifest.read(engine)
    backend = dataclasses.replace(manifest.backend, versions={**manifest.backend.versions, "onnxruntime": "99.1.0"})
    dataclasses.replace(manifest, backend=backend).write(engine)


def _later_format(engine: Path, _: Path) -> None:
    path = engine / FILE_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 99}))


def _missing_kernels(engine: Path, _: Path) -> None:
    (engine / "plugins" / "cpu_kernels.so").unlink()


def _missing_engine(engine: Path, _: Path) -> None:
    shutil.rmtree(engine)


def _damaged(engine: Path, _: Path) -> None:
    path = engine / "target" / "model.onnx"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def _other_format(_: Path, model: Path) -> None:
    _edit(model, r'"repository_format" value: \{ string_value: "2"', '"repository_format" value: { string_value: "1"')


def _bad_number(_: Path, model: Path) -> None:
    _edit(model, r'"max_running" value: \{ string_value: "4"', '"max_running" value: { string_value: "many"')


def _wrong_numpy(_: Path, model: Path) -> None:
    more = f'parameters {{ key: "EXECUTION_ENV_PATH" value: {{ string_value: "{sys.prefix}" }} }}\n'
    path = model / "config.pbtxt"
    path.write_text(path.read_text() + more)


def _no_package(_: Path, model: Path) -> None:
    path = model / "1" / "model.py"
    path.write_text(path.read_text().replace("from peagle.engines", "from peagle_that_is_not_there"))


def _edit(model: Path, pattern: str, text: str) -> None:
    path = model / "config.pbtxt"
    changed, count = re.subn(pattern, text, path.read_text())
    assert count == 1
    path.write_text(changed)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_older_runtime, "the engine was built with onnxruntime 99.1.0, but 1."),
        (_later_format, "has engine format 99, but this version reads formats up to"),
        (_missing_kernels, "cpu_kernels.so is missing; the manifest lists this file; fix: rebuild the engine"),
        (_missing_engine, "is not an engine folder"),
        (_damaged, "model.onnx was changed after the build"),
        (_other_format, "repository_format is '1', but this version supports '2'"),
        (_bad_number, "config.pbtxt: invalid max_running: 'many'"),
        (_wrong_numpy, "Triton's Python backend does not work with NumPy 2."),
        (_no_package, "fix: `pip install peagle-compile`"),
    ],
)
def test_unrunnable_model_is_rejected_with_a_sentence(
    triton: TritonProcess,
    triton_repository: Path,
    talking_engine: Path,
    tmp_path: Path,
    spoil: Callable[[Path, Path], None],
    message: str,
) -> None:
    engine = Path(shutil.copytree(talking_engine, tmp_path / "engine"))
    name = f"spoilt{spoil.__name__}"
    model = write(engine, triton_repository, name, "--link")
    spoil(engine, model)
    require_refusal(triton, name, message)
    for folder in triton_repository.glob(f"{name}*"):
        shutil.rmtree(folder)


def require_refusal(server: TritonProcess, name: str, message: str) -> None:
    """A model is not loaded, client and log are told why, and the others answer."""
    answer = server.load(name)
    assert answer.status == 400
    assert message in answer.events[0]["error"]
    assert message in server.log()
    assert server.generate(name, text_input="a").status != 200
    server.unload(name)
    assert server.generate("demo", text_input="x", max_tokens=1).status == 200


def of_a_gpu(engine: Path) -> None:
    """Make the manifest of an engine say that its graphs are plans for a B200."""
    manifest = Manifest.read(engine)
    sizes = (Profile("verify", (1, 4, 4), (1, 9, 9), (1, 9, 9)),)
    halves = {}
    for half, part in manifest.parts.items():
        names = (*part.inputs, *part.outputs)
        tensors = tuple(PlanTensor(name, "float16" if "_cache" in name else "int32", (-1,)) for name in names)
        halves[half] = dataclasses.replace(part, plan=PlanRecord(sizes, {}, {}, tensors))
    backend = BackendRecord("tensorrt", "tensorrt", {"tensorrt": "10.15.1.29"}, ("sm_100",))
    dataclasses.replace(manifest, backend=backend, **halves).write(engine)


@pytest.mark.parametrize("asks_for_gpu", [True, False])
def test_plans_for_an_absent_gpu_are_rejected(
    triton: TritonProcess, triton_repository: Path, talking_engine: Path, tmp_path: Path, asks_for_gpu: bool
) -> None:
    engine = Path(shutil.copytree(talking_engine, tmp_path / "engine"))
    of_a_gpu(engine)
    model = write(engine, triton_repository, "plans", "--link", "--force")
    if asks_for_gpu:  # as it is written; the server itself looks for the GPU
        message = "specifies invalid or unsupported gpu id 0"
    else:
        _edit(model, r"kind: KIND_GPU gpus: \[ 0 \]", "kind: KIND_CPU")
        message = "the package cuda-core is not installed; TensorRT engines require this package"
    require_refusal(triton, "plans", message)
    for folder in triton_repository.glob("plans*"):
        shutil.rmtree(folder)
