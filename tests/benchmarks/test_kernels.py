"""The baselines in benchmarks/kernels.py compute the same as the references, and its table is correct."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from peagle.plugins.kernels.sources import kernel_of
from peagle.plugins.ops import OPS
from tests.plugins.plugin_cases import Arrays, quick, reference, windows, with_emitted

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "kernels.py"


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("benchmarks_kernels", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


bench = load_script()


def tensors(batch: Arrays, *names: str) -> list[Any]:
    return [torch.from_numpy(np.ascontiguousarray(batch[name])) for name in names]


@quick
@given(windows())
def test_placeholder_draft_in_pytorch_matches_reference(batch: Arrays) -> None:
    batch = with_emitted(batch)
    given_in = tensors(batch, "input_ids", "start", "window_len", "draft_len", "tokens", "num_tokens")
    expected = reference("PlaceholderDraft", batch, mask_token_id=7)
    for ours, theirs in zip(bench.torch_rows(*given_in, mask=7), expected, strict=True):
        assert str(ours.dtype).removeprefix("torch.") == str(theirs.dtype)
        np.testing.assert_array_equal(ours.numpy(), theirs)


@quick
@given(windows())
def test_numbers_at_in_pytorch_matches_reference(batch: Arrays) -> None:
    rows, columns, _ = batch["logits"].shape
    batch = batch | {"numbers": np.random.default_rng(1).random((rows, 700), np.float32)}
    ours = bench.torch_numbers(*tensors(batch, "numbers", "start", "window_len", "draft_len"), columns)
    np.testing.assert_array_equal(ours.numpy(), reference("NumbersAt", batch, columns=columns)[0])


def test_greedy_acceptance_in_pytorch_matches_reference() -> None:
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(5, 4, 9)).astype(np.float32)
    best = logits.argmax(-1)
    ids = np.concatenate([np.zeros((5, 1), np.int64), best[:, :-1]], axis=1)
    for b in range(3):
        ids[b, 1 + b] = (ids[b, 1 + b] + 1) % 9
    arrays: Arrays = {
        "logits": logits,
        "input_ids": ids,
        "window_len": np.full(5, 4, np.int32),
        "draft_len": np.full(5, 3, np.int32),
        "forced_next": np.full(5, -1),
        "uniform": rng.random((5, 4), np.float32),
        **{name: np.zeros(5, np.float32) for name in ("temperature", "min_p", "tolerance")},
        "top_k": np.zeros(5, np.int32),
        "top_p": np.ones(5, np.float32),
    }
    bench_batch = bench.Batch(torch.from_numpy(ids), [], None, [], [], {})
    tokens, counts = bench.torch_accept(torch.from_numpy(logits), bench_batch, 0.0, 1.0)
    expected = reference("AcceptPrefix", arrays)
    np.testing.assert_array_equal(tokens.numpy(), expected[0])
    np.testing.assert_array_equal(counts.numpy(), expected[1])
    assert expected[1].tolist() == [1, 2, 3, 4, 4]


def test_sampling_in_pytorch_follows_the_filtered_distribution() -> None:
    torch.manual_seed(3)
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    many = logits.expand(4000, 1, 4)
    bench_batch = bench.Batch(torch.zeros((4000, 1), dtype=torch.int64), [], None, [], [], {})
    tokens, counts = bench.torch_accept(many, bench_batch, 1.0, 0.75)
    shares = torch.bincount(tokens[:, 0], minlength=4) / 4000
    torch.testing.assert_close(shares, torch.tensor([0.625, 0.375, 0, 0]), atol=0.03, rtol=0)
    assert counts.unique().tolist() == [1]


def test_table_compares_with_floor_and_pytorch() -> None:
    machine = bench.Machine("A GPU", 100, "580.1", "13.0", "2.13.0", "nvcc 13.0", 126.0, 7000.0, 2.5)
    spread = bench.Spread(12.0, 11.0, 14.0)
    row = bench.Row("AcceptPrefix", "greedy", "float16", 151936, 8, 8, 10.0, spread, spread, bench.Spread(60, 59, 61))
    table = bench.markdown(machine, [row, bench.Row("NumbersAt", "", "", 0, 1, 1, 0.1, spread, spread, None)])
    assert "A GPU (SM 10.0), driver 580.1" in table
    assert "| 10.0 | 12.0 (11.0 .. 14.0) | 1.20x |" in table
    assert "| 5.0x |" in table
    assert "out of memory" in table
    assert len({line.count("|") for line in table.splitlines()[2:]}) == 1


def test_routed_experts_are_called_as_their_specs_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"HIDDEN": 64, "INNER": 96, "EXPERTS": 8, "CHOSEN": 2, "DEVICE": "cpu"}.items():
        monkeypatch.setattr(bench, name, size)
    called = []

    def kernel(name: str) -> Any:
        def call(tensors: list[Any], dims: dict[str, int], dtype: str) -> None:
            op, (*given, result) = OPS[name], tensors
            dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
            assert op.infer_shapes([tuple(tensor.shape) for tensor in given]) == [tuple(result.shape)]
            assert op.infer_dtypes(dtypes[:-1]) == dtypes[-1:]
            assert set(kernel_of(op).scalars) <= dims.keys()
            assert dtype == "bfloat16"
            called.append(name)

        return call

    def timed(enqueue: Any, launches: int) -> Any:
        enqueue(launches - 1)
        return bench.Spread(2.0, 1.0, 3.0)

    monkeypatch.setattr(bench, "timed", timed)
    kernels = {name: kernel(name) for name in bench.OF_EXPERTS}
    rows = bench.routed_experts(kernels, 8 * 40, "bfloat16", 1e6)  # enough tokens to select every expert
    assert called == [name for name in bench.OF_EXPERTS for _ in range(2)]
    assert [row.floor for row in rows] == [8 * 2 * 96 * 64 * 17 / 32, 8 * 64 * 96 * 17 / 32]
    machine = bench.Machine("A GPU", 100, "580.1", "13.0", "2.13.0", "nvcc 13.0", 126.0, 7000.0, 2.5)
    assert "out of memory" not in bench.markdown(machine, rows)


def test_the_benchmark_exits_3_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    assert bench.main() == 3
    assert "needs an NVIDIA GPU" in capsys.readouterr().err
