"""Verify: a lossless engine passes, a lossy one fails with the position, and both are recorded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from peagle.compiler.bundled.prompts import Prompt
from peagle.compiler.console.progress import Quiet
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.verify import parity, verify, verify_engine
from peagle.compiler.verify.losslessness import compare_on_and_off
from peagle.compiler.verify.parity import Parity
from peagle.compiler.verify.printing import lines, lossless_lines
from peagle.engines import Acceptance, SamplingParams
from peagle.engines.folder.records import FileEntry
from peagle.graphs.lowering import LOWERINGS
from peagle.plugins.optional_packages import install
from tests.engines.folder.test_manifest import manifest_of

PROMPTS = [Prompt("one", "ab"), Prompt("two", "cde")]
ALONE = ("losslessness",)


class FakeEngine:
    """Emits numbers that depend on the prompt and the seed, and for ``lossy`` K a wrong one at position 3.

    ``tie``: a text of that many tokens is followed by the wrong one where it is read in one window.
    """

    def __init__(self, folder: Path, lossy: Sequence[int] = (), short: Sequence[int] = (), tie: int = 0) -> None:
        files = {f"{part}/model.onnx": FileEntry(1, "0" * 64) for part in ("target", "drafter")}
        self.folder, self.manifest, self.lossy, self.short = folder, manifest_of(files), lossy, short
        self.tie, self.mixes_up = tie, False
        self.at_once: list[tuple[int, int]] = []
        self.tokenizer = SimpleNamespace(encode=lambda text: [ord(letter) for letter in text])
        self.max_seq_len = 64

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams] | SamplingParams,
        *,
        num_speculative_tokens: int,
        draft: str | None = None,
    ) -> list[Any]:
        self.at_once.append((num_speculative_tokens, len(prompts)))
        policies = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        outputs = [self._one(p, s, num_speculative_tokens) for p, s in zip(prompts, policies, strict=True)]
        if self.mixes_up and len(prompts) > 1:
            outputs[0].token_ids = outputs[1].token_ids
        return outputs

    def _one(self, prompt: Sequence[int], params: SamplingParams, num_speculative_tokens: int) -> Any:
        ids = [(len(prompt) + i + 7 * (params.seed or 0)) % 100 for i in range(params.max_tokens)]
        if num_speculative_tokens in self.lossy:
            ids[3] = 99 - ids[3]
        if len(prompt) == self.tie:
            ids[0] = 99 - ids[0]
        if num_speculative_tokens in self.short:
            ids = ids[:-2]
        assert len(prompt) + params.max_tokens <= self.max_seq_len
        acceptance = Acceptance(rounds=4, drafted=8, accepted=6)
        return SimpleNamespace(token_ids=tuple(ids), prompt_token_ids=tuple(prompt), acceptance=acceptance)

    def target_logits(self, ids: Sequence[int]) -> np.ndarray:
        return np.tile(np.arange(100, dtype=np.float32), (len(ids), 1))


def test_an_engine_that_speculation_does_not_change_passes(tmp_path: Path) -> None:
    found = verify(FakeEngine(tmp_path), prompts=PROMPTS, max_tokens=10, k=(1, 3), only=ALONE)
    assert found.passed
    lossless = found.losslessness
    assert lossless.tokens_compared == 2 * 2 * 2 * 10
    assert lossless.tokens_differing == 0
    assert lossless.acceptance_length["greedy, K = 3"] == 2.5
    assert set(lossless.policies) == {"greedy", "temperature 0.8"}


def test_a_repeated_k_is_compared_once(tmp_path: Path) -> None:
    found = verify(FakeEngine(tmp_path), prompts=PROMPTS, max_tokens=10, k=(3, 1, 3, 3), only=ALONE).losslessness
    assert (found.k, found.tokens_compared) == ((3, 1), 2 * 2 * 2 * 10)


def test_nan_logits_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEngine, "target_logits", lambda _, ids: np.full((len(ids), 100), np.nan, np.float32))
    found = verify(FakeEngine(tmp_path), prompts=PROMPTS, max_tokens=10, k=(1,))
    assert not found.passed
    assert json.loads((tmp_path / "verify.json").read_text())["losslessness"]["finite"] is False


def test_logits_that_depend_on_the_width_of_the_window_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not a token differs."""
    same = verify(FakeEngine(tmp_path), prompts=PROMPTS[1:], max_tokens=10, k=(1,), only=ALONE).losslessness
    assert ("logits in windows of other widths", "the same to the bit") in lossless_lines(same)

    def by_width(_: FakeEngine, ids: Sequence[int]) -> np.ndarray:
        return np.full((len(ids), 100), 2 - 0.001 * len(ids), np.float32)

    monkeypatch.setattr(FakeEngine, "target_logits", by_width)
    found = verify(FakeEngine(tmp_path), prompts=PROMPTS[1:], max_tokens=10, k=(1,), only=ALONE).losslessness
    assert found.passed
    assert found.width_difference == pytest.approx(0.002 / 1.997, rel=1e-3)
    assert ("logits in windows of other widths", "differ by up to 1.0e-03 of the largest") in lossless_lines(found)


def test_a_lossy_k_fails_with_the_first_difference_and_its_margin(tmp_path: Path) -> None:
    found = verify(FakeEngine(tmp_path, lossy=[3]), prompts=PROMPTS, max_tokens=10, k=(1, 3))
    assert not found.passed
    assert found.losslessness.tokens_differing == 4
    first = found.losslessness.divergences[0]
    assert (first.prompt, first.policy, first.k, first.position) == ("one", "greedy", 3, 3)
    assert first.margin == abs(first.plain - first.speculative) > 0
    assert {d.k for d in found.losslessness.divergences} == {3}


def test_tolerance_changes_are_counted_but_not_judged(tmp_path: Path) -> None:
    done = verify(
        FakeEngine(tmp_path, lossy=[3]),  # type: ignore[arg-type]
        prompts=PROMPTS, max_tokens=6, k=[3], acceptance_tolerance=0.3, only=("losslessness",),
    )  # fmt: skip
    assert done.passed
    assert done.losslessness is not None
    assert done.losslessness.tokens_differing > 0
    said = dict(lossless_lines(done.losslessness))
    assert "acceptance tolerance 0.3" in said["LOSSY"]
    written = json.loads((tmp_path / "verify.json").read_text())["losslessness"]
    assert (written["passed"], written["lossy"], written["acceptance_tolerance"]) == (None, True, 0.3)


def test_prompts_run_alone_plain_and_together_with_drafts(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path)
    seven = [Prompt(str(i), "x" * (i + 1)) for i in range(7)]
    found = verify(engine, prompts=seven, max_tokens=10, k=(2,), batch=3).losslessness
    assert engine.at_once[:7] == [(0, 1)] * 7
    assert engine.at_once[7:15] == [(k, size) for k in (0, 2) for size in (1, 2, 3, 1)]
    assert (found.k, found.batch, found.tokens_compared, found.passed) == ((0, 2), 3, 2 * 2 * 7 * 10, True)


def test_a_neighbour_that_changes_a_token_is_a_loss(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path)
    engine.mixes_up = True
    found = verify(engine, prompts=[*PROMPTS, Prompt("three", "x")], max_tokens=10, k=(2,), batch=2).losslessness
    assert not found.passed
    assert {d.prompt for d in found.divergences} == {"two"}
    assert ("batch", "1 to 2 prompts, compared with single prompts") in lossless_lines(found)


def test_a_missing_token_is_a_difference(tmp_path: Path) -> None:
    found = verify(FakeEngine(tmp_path, short=[1]), prompts=PROMPTS[:1], max_tokens=10, k=(1,))
    assert found.losslessness.tokens_differing == 4
    assert found.losslessness.divergences[0].speculative is None


def test_the_result_is_written_into_the_engine(tmp_path: Path) -> None:
    found = verify(FakeEngine(tmp_path, lossy=[1]), prompts=PROMPTS, max_tokens=10, k=(1,))
    assert json.loads((tmp_path / "verify.json").read_text()) == json.loads(json.dumps(found.as_json()))
    assert [path.name for path in tmp_path.iterdir()] == ["verify.json"]
    assert found.as_json()["passed"] is False
    assert found.as_json()["losslessness"]["passed"] is False


def test_k_without_room_is_skipped(tmp_path: Path) -> None:
    assert verify(FakeEngine(tmp_path), prompts=PROMPTS, max_tokens=5, k=(3, 9)).losslessness.k == (3,)
    assert verify(FakeEngine(tmp_path), prompts=PROMPTS, max_tokens=5, k=(9,)).losslessness.k == (8,)


def test_empty_comparison_is_not_a_pass(tmp_path: Path) -> None:
    assert not verify(FakeEngine(tmp_path), prompts=[], max_tokens=5, k=(1,)).passed


def test_a_token_that_plain_decoding_gives_in_other_windows_is_a_tie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a plan that rounds: for FP32, and on ONNX Runtime, it is a loss like any other."""
    engine = FakeEngine(tmp_path, lossy=[3], tie=len(PROMPTS[0].text) + 3)
    found = compare_on_and_off(engine, PROMPTS[:1], 10, (1, 3), Quiet(), exact=False)
    assert found.passed
    assert (found.ties, [each.tie for each in found.divergences]) == (2, [True, True])
    assert found.tokens_compared == 2 * 10 + 2 * 3
    assert "ties" in dict(lossless_lines(found))
    engine.manifest = dataclasses.replace(
        engine.manifest, precision=RECIPES["int8"].on("fp32", LOWERINGS["ort"]).record()
    )
    monkeypatch.setattr(verify_engine, "measure", lambda *_: None)
    exact = verify(engine, prompts=PROMPTS[:1], max_tokens=10, k=(3,)).losslessness
    assert (exact.passed, exact.ties, exact.tokens_differing) == (False, 0, 2)
    backend = dataclasses.replace(engine.manifest.backend, name="tensorrt-rtx", gpus=("sm_120",))
    engine.manifest = dataclasses.replace(engine.manifest, backend=backend)
    assert verify(engine, prompts=PROMPTS[:1], max_tokens=10, k=(3,)).losslessness.ties == 2


def test_a_token_that_plain_decoding_never_gives_is_a_loss(tmp_path: Path) -> None:
    for engine in (FakeEngine(tmp_path, lossy=[3]), FakeEngine(tmp_path, short=[3])):
        found = compare_on_and_off(engine, PROMPTS, 10, (1, 3), Quiet(), exact=False)
        assert (found.passed, found.ties) == (False, 0)
        assert found.tokens_differing > 0


def test_prompts_are_cut_to_capacity_with_a_note(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path)
    long = [*PROMPTS, Prompt("long", "x" * 100)]
    found = verify(engine, prompts=long, max_tokens=10, k=(1,)).losslessness
    assert found.notes == ("1 of 3 prompts were truncated to 54 tokens: the engine's max_seq_len is 64",)
    found = verify(engine, prompts=long, max_tokens=500, k=(1,)).losslessness
    assert (found.passed, found.prompts, found.max_tokens) == (True, 3, 32)
    assert found.notes == (
        "answers are limited to 32 tokens instead of 500: the engine's max_seq_len is 64",
        "1 of 3 prompts were truncated to 32 tokens: the engine's max_seq_len is 64",
    )
    assert verify(engine, prompts=PROMPTS, max_tokens=10, k=(1,)).losslessness.notes == ()


def test_a_failed_parity_check_fails_the_whole(tmp_path: Path) -> None:
    found = verify(FakeEngine(tmp_path), prompts=PROMPTS, max_tokens=5, k=(1,), only=ALONE)
    failed = (Parity("target logits", "failed", "against torch", 0.5),)
    bad = dataclasses.replace(found, parity=failed, left_out=("text", "precision"))
    assert found.passed
    assert (bad.passed, bad.status) == (False, "failed")


def test_impossible_check_states_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verify(FakeEngine(tmp_path), prompts=PROMPTS, max_tokens=5, k=(1,))
    assert {check.status for check in found.parity} == {"not checked"}
    assert "cannot be opened" in found.parity[0].detail
    assert (found.passed, found.status) == (False, "not checked")
    assert "cannot be opened" in found.not_checked["parity"]
    assert "cannot be opened" in found.not_checked["text"]
    assert ("result", "NOT CHECKED: text, parity") in lines(found)
    monkeypatch.setattr(parity, "find_spec", lambda name: None)
    found = verify(FakeEngine(tmp_path), prompts=PROMPTS, max_tokens=5, k=(1,))
    assert install("export") in found.parity[0].detail
