"""Several engines on the same text: metrics, texts and refusals."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from evaluate_precision import PrecisionRow, compare, load, main
from precision_texts import KINDS, Amount, Passages

from peagle.compiler.verify.logits import compare_logits, log_softmax
from peagle.engines import Engine
from peagle.plugins.errors import UsageError
from tests.models import Pair

FEW = Amount(windows=2, length=40, answers=2, answer_tokens=6)


@pytest.fixture(scope="module")
def narrow_folder(tiny_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target of ``tiny_folder`` in INT4, without a drafter."""
    from peagle.compiler.pipeline.build import build
    from peagle.compiler.request.verb_options import BUILD

    out = tmp_path_factory.mktemp("narrow") / "narrow"
    return build(
        BUILD.request(
            model=str(tiny_pair.target), draft="none", out=out, precision="int4", max_seq_len=96, calib_samples=6,
            calib_length=64,
        )
    ).path  # fmt: skip


@pytest.fixture(scope="module")
def engines(tiny_folder: Path, narrow_folder: Path) -> list[Engine]:
    return load([tiny_folder, narrow_folder])


def test_the_first_engine_is_the_reference(engines: Sequence[Engine]) -> None:
    passages = KINDS["code"](engines[0], FEW)
    assert [len(ids) for ids in passages.ids] == [41, 41]
    wide, narrow = compare(engines, passages)
    assert (wide.precision, narrow.precision) == ("fp32", "int4")
    assert (wide.change, wide.error, wide.kl_mean, wide.kl_p99, wide.same) == (0, 0, 0, 0, 1)
    assert (wide.tokens, narrow.tokens) == (80, 80)
    assert narrow.bytes < wide.bytes
    found = compare_logits(engines[0].target_logits, engines[1].target_logits, passages.ids)
    assert narrow.kl_mean == pytest.approx(found.kl_mean)
    assert 0 < narrow.kl_mean <= narrow.kl_p99
    assert narrow.perplexity == pytest.approx(found.perplexity_candidate) != wide.perplexity
    assert narrow.error > 0


def test_windows_share_a_token_and_are_deterministic(engines: Sequence[Engine]) -> None:
    every = KINDS["prose"](engines[0], Amount(None, 90, 0, 0))
    assert all(one[-1] == other[0] for one, other in zip(every.ids, every.ids[1:], strict=False))
    assert every.predicted == 90 * len(every.ids)
    few = KINDS["prose"](engines[0], Amount(3, 90, 0, 0))
    step = len(every.ids) // 3
    assert few.ids == every.ids[::step][:3]
    assert few.digest == KINDS["prose"](engines[0], Amount(3, 90, 0, 0)).digest != every.digest


def test_answers_come_from_the_reference_in_its_template(tiny_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "talks"))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content[:20] }}{% endfor %}")
    (engine,) = load([folder])
    passages = KINDS["chat"](engine, FEW)
    assert len(passages.ids) == 2
    question = "Write a Python function that reverses"[:20]
    (answer,) = engine.generate([question], num_speculative_tokens=0)
    assert passages.ids[0][: len(answer.prompt_token_ids)] == answer.prompt_token_ids
    assert passages.ids[0][passages.given[0] :] == answer.token_ids[:6]
    assert passages.given[0] == len(answer.prompt_token_ids)
    assert passages.predicted == 12
    (row,) = compare([engine], passages)
    greedy = [
        engine.target_logits(ids)[given - 1 : -1] for ids, given in zip(passages.ids, passages.given, strict=True)
    ]
    likely = np.concatenate([log_softmax(logits).max(axis=-1) for logits in greedy])
    assert row.perplexity == pytest.approx(np.exp(-likely.mean()))


def test_engines_that_read_other_tokens_are_refused(tiny_folder: Path, demo_engine: Path) -> None:
    with pytest.raises(UsageError, match="tokenizes differently"):
        load([tiny_folder, demo_engine])


def test_results_are_printed_and_written(
    tiny_folder: Path,
    narrow_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [str(tiny_folder), str(narrow_folder), "--texts", "prose", "--windows", "2", "--window", "40"]
    monkeypatch.setattr(sys, "argv", ["evaluate_precision.py", *arguments, "--json", str(tmp_path / "found.json")])
    main()
    printed = capsys.readouterr().out
    assert "prose: 80 tokens in 2 passages, digest " in printed
    wide, narrow = (PrecisionRow(**row) for row in json.loads((tmp_path / "found.json").read_text()))
    assert f"{narrow.perplexity:.4f}" in printed
    assert f"{narrow.kl_mean:.4f}" in printed
    assert (wide.text, wide.engine, narrow.engine) == ("prose", tiny_folder.name, "narrow")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["{empty}"], 3, "fix: "),
        (["{tiny}", "--texts", "code", "--window", "400"], 2, "fix: "),
        (["{tiny}", "--texts", "prose", "--window", "9999999"], 2, "is longer than the text"),
        (["{tiny}", "--texts", "chat"], 2, "chat template"),
        (["{tiny}", "--windows", "0"], 2, "0 must be positive"),
        (["{tiny}", "--json", "{empty}/none/found.json"], 2, "its folder does not exist"),
    ],
)
def test_unmeasurable_input_is_an_error(
    arguments: list[str],
    code: int,
    said: str,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = [each.format(empty=tmp_path, tiny=tiny_folder) for each in arguments]
    monkeypatch.setattr(sys, "argv", ["evaluate_precision.py", *named])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == code
    assert said in capsys.readouterr().err


def test_digest_covers_tokens_and_passage_ends() -> None:
    one, other = (Passages("code", ids, (1, 1)) for ids in (((1, 2), (3, 4, 5)), ((1, 2, 3), (4, 5))))
    given = Passages("code", one.ids, (1, 2))
    assert len({one.digest, other.digest, given.digest}) == 3
    assert [one.predicted, other.predicted, given.predicted] == [3, 3, 2]
