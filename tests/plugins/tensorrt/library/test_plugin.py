"""The plugins of the library, called by a TensorRT stand-in, agree with the specs, messages included."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.plugins.cpu.compile import find_compilers
from peagle.plugins.errors import BuildError, EnvironmentProblem
from peagle.plugins.kernels.compile import Cubin
from peagle.plugins.kernels.launch import geometry
from peagle.plugins.kernels.sources import digest, entries, kernel_of, kernel_ops
from peagle.plugins.ops import OPS
from peagle.plugins.tensorrt.check_call import check_call
from peagle.plugins.tensorrt.library.sources import files

STAND_IN = Path(__file__).with_name("stand_in.cpp")
DRIVER = Path(__file__).parents[2] / "kernels" / "recording_driver.c"
ATTRIBUTES: Mapping[str, Mapping[str, int]] = {"NumbersAt": {"columns": 5}, "PlaceholderDraft": {"mask_token_id": 9}}
SIZES = {"B": 3, "S": 7, "E": 5, "V": 262_144, "N": 65, "Hkv": 2, "T": 64, "D": 16, "C": 8, "P": 4, "W": 32}
SIZES |= {"A": 2, "H": 64, "I": 64, "J": 128, "pair": 2, "blocks": 2, "bytes": 16}
CODE = b"\x7fELF, and no machine code"


def compiled(folder: Path, *options: str) -> Path:
    """The stand-in with the library, and a recording driver."""
    try:
        compiler = find_compilers()[0]
    except EnvironmentProblem as problem:
        pytest.skip(problem.what)
    cubins = [Cubin(op.name, sm, digest(op), CODE, {}) for op in kernel_ops() for sm in (89, 100, 120)]
    main, *others = files(cubins).items()
    for name, content in others:
        (folder / name).write_bytes(content)
    (folder / "main.cpp").write_bytes(main[1] + STAND_IN.read_bytes())
    command = [*compiler.command, *compiler.options]
    quiet = ["-std=c++17", "-w", "-ldl"]
    subprocess.run([*command, *options, "main.cpp", "-o", "stand-in", *quiet], cwd=folder, check=True)
    (folder / "driver").mkdir()
    driver = ["-x", "c", str(DRIVER), "-shared", "-fPIC", "-w", "-o", "driver/libcuda.so.1", "-ldl"]
    subprocess.run([*command, *driver], cwd=folder, check=True)
    return folder / "stand-in"


class StandIn:
    """The process; it answers each line with a line, and with the library's messages."""

    def __init__(self, path: Path, said: Path, **environment: str) -> None:
        with said.open("w") as errors:
            self.process = subprocess.Popen(
                [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=os.environ | environment,
            )  # fmt: skip
        self.said = said.open()

    def ask(self, *words: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.words()
        return answer.strip()

    def words(self) -> str:
        """What the library said since this was asked last."""
        words = self.said.read()
        return words.strip().removeprefix("[peagle] [E] ")

    def create(self, op: str, *fields: str) -> str:
        given = [f"{name}=INT32:{value}" for name, value in ATTRIBUTES.get(op, {}).items()]
        return self.ask("create", op, *(fields or given))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(30) == 0, self.words()
        self.said.close()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("stand-in"))


@pytest.fixture(scope="module")
def shared(program: Path) -> Iterator[StandIn]:
    stand_in = StandIn(program, program.with_name("said"))
    yield stand_in
    stand_in.close()


@pytest.fixture
def stand_in(shared: StandIn) -> StandIn:
    """One that has nothing left to say of what was asked before."""
    shared.words()
    return shared


def joined(sizes: Iterable[Any]) -> str:
    return ",".join(map(str, sizes))


def inputs_of(op: str, sizes: Mapping[str, Any] = SIZES, floats: str = "float16") -> list[str]:
    return [
        f"{floats if len(operand.dtypes) > 1 else operand.dtypes[0]}:"
        + ",".join(str(sizes[dim]) for dim in operand.dims)
        for operand in OPS[op].inputs
    ]


def outputs_of(op: str, sizes: Mapping[str, int] = SIZES, floats: str = "float16") -> list[str]:
    spec = OPS[op]
    dtypes = spec.infer_dtypes([word.partition(":")[0] for word in inputs_of(op, sizes, floats)])
    shapes = spec.infer_shapes([[sizes[dim] for dim in operand.dims] for operand in spec.inputs], ATTRIBUTES.get(op))
    return [f"{dtype}:" + ",".join(map(str, shape)) for dtype, shape in zip(dtypes, shapes, strict=True)]


@pytest.mark.parametrize("op", [op.name for op in kernel_ops()])
def test_plugin_has_the_name_and_storage_of_the_python_plugin(stand_in: StandIn, op: str) -> None:
    spec = OPS[op]
    names = [operand.name for operand in spec.inputs]
    aliases = [-1 if output.aliases is None else names.index(output.aliases) for output in spec.outputs]
    kept = [f"{name} 10 {value}" for name, value in ATTRIBUTES.get(op, {}).items()]  # 10 is INT64
    version = 2 if any(output.aliases for output in spec.outputs) else 1
    assert stand_in.create(op) == "made"
    description = " ".join([f"peagle {op} 1 build {version} aliases", *map(str, aliases), *kept])
    assert stand_in.ask("describe") == description
    assert stand_in.ask("clone") == "cloned"
    assert stand_in.ask("describe") == description


@st.composite
def calls(draw: Any) -> tuple[str, list[str], list[list[int | str]]]:
    """A call of an op that is right, or nearly: some type, size or rank may be another."""
    spec = draw(st.sampled_from(kernel_ops()))
    dims = {dim for operand in spec.inputs for dim in operand.dims}
    of_size = st.one_of(st.integers(0, 9), st.just(40_000), st.none())
    sizes: dict[str, int | str] = {}
    for dim in sorted(dims):
        size = draw(of_size)
        sizes[dim] = dim if size is None else size
    sizes |= {"T": "T"} if draw(st.booleans()) and "T" in dims else {}
    dtypes, shapes = [], []
    floats = draw(st.sampled_from(["float16", "float32", "bfloat16"]))
    for operand in spec.inputs:
        dtypes.append(floats if len(operand.dtypes) > 1 else operand.dtypes[0])
        shapes.append([sizes[dim] for dim in operand.dims])
    at = draw(st.integers(0, len(spec.inputs) - 1))
    match draw(st.sampled_from(["right", "right", "type", "size", "rank", "count"])):
        case "type":
            dtypes[at] = draw(st.sampled_from(["bool", "int8", "float32", "int64"]))
        case "size" if shapes[at]:
            shapes[at][-1] = 4
        case "rank":
            shapes[at].append(1)
        case "count" if draw(st.booleans()):
            del dtypes[-1], shapes[-1]
    return spec.name, dtypes, shapes


@settings(max_examples=100, deadline=None)
@given(calls())
def test_types_and_shapes_are_inferred_and_rejected_per_spec(
    shared: StandIn, call: tuple[str, Sequence[str], Sequence[Sequence[int | str]]]
) -> None:
    op, dtypes, shapes = call
    shared.words()
    assert shared.create(op) == "made"
    words = [f"{dtype}:{joined(shape)}" for dtype, shape in zip(dtypes, shapes, strict=True)]
    answer, said = shared.ask("infer", *words), shared.words()
    if len(dtypes) < len(OPS[op].inputs):
        assert answer == "refused"
        assert f"{op}: has {len(OPS[op].inputs)} inputs" in said
        return
    try:
        outputs = check_call(OPS[op], ATTRIBUTES.get(op, {}), dtypes, shapes)
        expected = (" ".join(f"{dtype}:{joined(shape)}" for dtype, shape in outputs), "")
    except BuildError as error:
        expected = ("refused", error.what)
    assert (answer, said) == expected


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (["other=INT32:3"], "unknown attribute 'other'"),
        (["mask_token_id=INT64:9", "other=INT32:3"], "unknown attribute 'other'"),
        (["mask_token_id=INT32:-5"], "mask_token_id must be 0 or more"),
        (["mask_token_id=INT32:1,2"], "mask_token_id must be one number, not 2"),
        (["mask_token_id=FLOAT32:1"], "mask_token_id must be INT32 or INT64, not FLOAT32"),
        ([f"mask_token_id=INT64:{2**32}"], f"mask_token_id is {2**32}, but its kernel takes 32-bit integers"),
    ],
)
def test_an_attribute_that_does_not_fit_is_refused(stand_in: StandIn, fields: Sequence[str], complaint: str) -> None:
    assert stand_in.create("PlaceholderDraft", *fields) == "refused"
    assert stand_in.words() == f"PlaceholderDraft: {complaint}"


def test_an_attribute_that_must_be_given_is(stand_in: StandIn) -> None:
    assert stand_in.ask("create", "PlaceholderDraft") == "refused"
    assert stand_in.words() == "PlaceholderDraft: mask_token_id must be given"


def test_one_type_combination_in_linear_format_is_supported(stand_in: StandIn) -> None:
    for op, floats in (("AcceptPrefix", "bfloat16"), ("CacheWriteFp8", "float32")):
        stand_in.create(op)
        inputs, outputs = inputs_of(op, floats=floats), outputs_of(op, floats=floats)
        words, count = [*inputs, *outputs], str(len(inputs))
        for position in range(len(words)):
            for other, taken in (
                (words[position], "1"),
                (f"{words[position]}:3", "0"),
                ("bool:1", "0"),
                ("none:1", "0"),
            ):
                assert stand_in.ask("supports", str(position), count, *words[:position], other) == taken
    mixed = [*inputs[:3], "float16:1"]  # v follows k
    assert stand_in.ask("supports", "3", count, *mixed) == "0"


def test_real_shapes_are_checked_when_they_change(stand_in: StandIn) -> None:
    stand_in.create("PlaceholderDraft")
    inputs, outputs = inputs_of("PlaceholderDraft"), outputs_of("PlaceholderDraft")
    unknown = [word.partition(":")[0] + ":" + ",".join("-1" for _ in word.split(",")) for word in (*inputs, *outputs)]
    assert stand_in.ask("shapes", *inputs, *outputs) == "taken"
    assert stand_in.ask("shapes", *unknown) == "taken"
    assert stand_in.words() == ""
    for change, words in {
        (5, "int32:4"): "num_tokens: dimension B is 4, but 3 in another tensor",
        (4, "int32:3,1"): "tokens must have at least 2 columns: K >= 1 drafts and one more",
        (4, "int64:3,5"): "tokens must be int32, not int64",
        (6, "int64:3,9"): "TensorRT passed row_ids with a type or shape that differs from the spec",
        (9, "int32:3"): "TensorRT passed newest with a type or shape that differs from the spec",
        (6, "int64:3"): "TensorRT passed row_ids with a type or shape that differs from the spec",
    }.items():
        changed = [*inputs, *outputs]
        changed[change[0]] = change[1]
        assert stand_in.ask("shapes", *changed) == "refused"
        assert stand_in.words() == f"PlaceholderDraft: {words}"


def parameters(op: str) -> str:
    """The sizes of the parameters of an op's kernel, as the recording driver is told them."""
    spec = OPS[op]
    return ",".join("8" * len(spec.inputs) + "4" * len(kernel_of(spec).scalars) + "8" * len(spec.outputs))


def launch(program: Path, op: str, *words: str, floats: str = "bfloat16", **environment: str) -> tuple[list[str], str]:
    """The lines that driver and stand-in print of an attached plugin and its launch, and what the library says."""
    fields = [f"{name}=INT32:{value}" for name, value in ATTRIBUTES.get(op, {}).items()]
    asked = [
        f"create {op} {' '.join(fields)}",
        "attach",
        "clone",
        f"enqueue {' '.join(words or inputs_of(op, floats=floats))}",
    ]
    variables = os.environ | {"LD_LIBRARY_PATH": str(program.parent / "driver"), "KERNEL_PARAMS": parameters(op)}
    done = subprocess.run(
        [program], input="\n".join(asked), capture_output=True, text=True, check=True, env=variables | environment
    )
    said = [line for line in done.stderr.splitlines() if "TensorRT is not loaded in this process" not in line]
    return done.stdout.splitlines(), "".join(said).removeprefix("[peagle] [E] ")


@pytest.mark.parametrize(
    ("sm", "compiled_in", "grid", "attribute"),
    [("89", "0", 3, ""), ("100", "8", 24, ""), ("103", "0", 24, " attribute 4:8,1,1")],
)
def test_inputs_scalars_and_outputs_reach_the_kernel_in_the_order_of_the_spec(
    program: Path, sm: str, compiled_in: str, grid: int, attribute: str
) -> None:
    lines, said = launch(program, "AcceptPrefix", COMPUTE_CAPABILITY=sm, KERNEL_CLUSTER=compiled_in)
    spec = OPS["AcceptPrefix"]
    inputs = " ".join(f"{0x100 + i:x}" for i in range(len(spec.inputs)))
    assert lines == [
        "made",
        "load \x7fELF",
        *(f"kernel {entry}" for entry in entries(spec)),
        "attached",
        "cloned",
        f"launch 0x22 stream 0xabc grid {grid},1,1 block {kernel_of(spec).threads},1,1 shared 0{attribute} "
        f"params {inputs} 3 5 7 262144 200 201",
        "launched",
    ]
    assert said == ""


def test_attributes_reach_the_kernel(program: Path) -> None:
    lines, _ = launch(program, "PlaceholderDraft")
    assert lines[-2].endswith("params 100 101 102 103 104 105 3 7 5 9 200 201 202 203 204 205 206")


def test_grids_are_those_of_the_python_launcher(program: Path) -> None:
    for op in kernel_ops():
        lines, _ = launch(program, op.name, COMPUTE_CAPABILITY="100")
        assert f" grid {geometry(op, 100, SIZES).grid},1,1 " in lines[-2], op.name


def test_empty_launch_is_skipped(program: Path) -> None:
    lines, said = launch(program, "NumbersAt", *inputs_of("NumbersAt", SIZES | {"B": 0}))
    assert (lines[-2:], said) == (["cloned", "launched"], "")


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"LD_LIBRARY_PATH": ""}, "the kernel cannot be used: libcuda.so.1: cannot open"),
        ({"FAILING": "cuInit"}, "CUDA failed to initialize: CUDA error 700: an illegal memory access"),
        ({"FAILING": "cuCtxGetDevice"}, "there is no current CUDA context"),
        ({"FAILING": "cuLibraryLoadData"}, "the kernel cannot be used: CUDA error 700"),
        ({"FAILING": "cuLibraryGetKernel"}, "the kernel cannot be used: numbers_at: CUDA error 700"),
        ({"FAILING": "cuLaunchKernelEx"}, "the launch failed: CUDA error 700"),
        ({"KERNEL_PARAMS": "8,8,8,8,4,8,4,8"}, "numbers_at: parameter 5 of the kernel differs from the spec"),
        ({"KERNEL_PARAMS": "8,8,8,8,4,4,4,8,8"}, "numbers_at: parameter 8 of the kernel differs from the spec"),
        ({"KERNEL_CLUSTER": "4"}, "the kernel was compiled for clusters of 4 blocks, not 1"),
        ({"COMPUTE_CAPABILITY": "75"}, "this library has no kernel for sm_75, only for sm_89, sm_100, sm_120"),
        ({"COMPUTE_CAPABILITY": "86"}, "this library has no kernel for sm_86, only for sm_89, sm_100, sm_120"),
    ],
)
def test_launch_failure_is_reported_at_launch(program: Path, environment: Mapping[str, str], complaint: str) -> None:
    """A build ahead of time attaches plugins where there is no GPU, and launches none."""
    if environment.get("LD_LIBRARY_PATH") == "" and Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver")
    lines, said = launch(program, "NumbersAt", **environment)
    assert "attached" in lines
    assert lines[-1] == "failed"
    assert said.startswith("NumbersAt: ")
    assert complaint in said


def test_a_plugin_never_attached_refuses_to_run(stand_in: StandIn) -> None:
    stand_in.create("NumbersAt")
    assert stand_in.ask("enqueue", *inputs_of("NumbersAt")) == "failed"
    assert "TensorRT did not attach the plugin" in stand_in.words()


def test_sizes_that_no_launch_takes_are_refused(program: Path) -> None:
    lines, said = launch(program, "AcceptPrefix", *inputs_of("AcceptPrefix", SIZES | {"V": 2**31}))
    assert (lines[-1], said) == ("failed", "AcceptPrefix: V is not a 32-bit integer")
    lines, said = launch(program, "AcceptPrefix", *inputs_of("AcceptPrefix", SIZES | {"B": 2**30}))
    assert (lines[-1], said) == ("failed", f"AcceptPrefix: cannot launch {2**30} blocks")


@pytest.mark.slow
def test_memory_accesses_stay_in_bounds(tmp_path: Path) -> None:
    program = compiled(tmp_path, "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    stand_in = StandIn(program, tmp_path / "said", ASAN_OPTIONS="detect_leaks=1")
    for op in kernel_ops():
        assert stand_in.create(op.name) == "made"
        assert "refused" not in stand_in.ask("infer", *inputs_of(op.name))
        assert stand_in.ask("shapes", *inputs_of(op.name), *outputs_of(op.name)) == "taken"
        assert stand_in.ask("shapes", "bool:1") == "refused"
        assert stand_in.ask("infer", "bool:1") == "refused"
        beyond = inputs_of(op.name, dict.fromkeys(SIZES, 2**62))
        assert stand_in.ask("shapes", *beyond, *outputs_of(op.name)) == "refused"
        assert stand_in.ask("clone") == "cloned"
        assert stand_in.ask("attach") == "attached"
        assert stand_in.ask("enqueue", *inputs_of(op.name)) == "failed"
        assert stand_in.create(op.name, "other=FLOAT32:1") == "refused"
    stand_in.close()
    for op in kernel_ops():
        lines, _ = launch(program, op.name)
        assert lines[-1] == "launched"
