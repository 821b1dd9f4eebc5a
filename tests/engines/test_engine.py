"""Generation with a real engine: the text is the target's own, for any K, batch, chunk size and slot."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.engines import Engine, SamplingParams
from peagle.engines import engine as engine_module
from peagle.engines.backends.opening import open_backend
from peagle.engines.folder import checks
from peagle.engines.folder.manifest import Manifest
from peagle.engines.scheduling import scheduler
from peagle.engines.text.tokenizer import Tokenizer
from peagle.graphs.drafters import torch_reference
from peagle.plugins.errors import EnvironmentProblem, UsageError
from tests.models import VOCAB, Pair
from tests.speculation import speculate

PROMPTS = [[5, 9, 30, 7], [11] * 17, [40], list(range(2, 35)), [80, 3]]
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.8, seed=11)


def _tokens(engine: Engine, params: SamplingParams, k: int | None = None) -> list[tuple[int, ...]]:
    return [o.token_ids for o in engine.generate(PROMPTS, params, num_speculative_tokens=k)]


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SAMPLED,
        SamplingParams(max_tokens=24, ignore_eos=True, temperature=1.3, top_k=12, seed=1),
        SamplingParams(max_tokens=24, ignore_eos=True, temperature=1.0, top_p=0.7, seed=2),
        SamplingParams(max_tokens=24, ignore_eos=True, temperature=1.0, min_p=0.05, seed=3),
    ],
    ids=["greedy", "temperature", "top-k", "top-p", "min-p"],
)
def test_speculation_changes_no_token(tiny_engine: Engine, params: SamplingParams) -> None:
    plain = _tokens(tiny_engine, params, 0)
    for k in (1, 3, 5, 6):
        assert _tokens(tiny_engine, params, k) == plain


def test_greedy_text_is_the_reference_s(tiny_engine: Engine, tiny_pair: Pair) -> None:
    model = torch_reference.load_target(tiny_pair.target, tiny_pair.config)
    spec, head = tiny_pair.specs()
    for prompt, tokens in [*zip(PROMPTS, _tokens(tiny_engine, GREEDY), strict=True)][1:4]:
        expected, _ = speculate(model, spec, tiny_pair.head_weights(), head, prompt, 4, 24)
        assert list(tokens) == expected


def test_acceptance_is_the_reference_s(tiny_engine: Engine, tiny_pair: Pair) -> None:
    model = torch_reference.load_target(tiny_pair.target, tiny_pair.config)
    spec, head = tiny_pair.specs()
    _, accepted = speculate(model, spec, tiny_pair.head_weights(), head, PROMPTS[0], 4, 24)
    stats = tiny_engine.generate(PROMPTS[:1], GREEDY)[0].acceptance
    assert (stats.rounds, stats.accepted) == (len(accepted), sum(accepted))
    assert stats.drafted == 4 * stats.rounds
    assert stats.histogram == {a: accepted.count(a) for a in set(accepted)}


def test_a_request_does_not_depend_on_its_batch(tiny_engine: Engine) -> None:
    mixed = [GREEDY, SAMPLED, SAMPLED, GREEDY, SAMPLED]
    together = [o.token_ids for o in tiny_engine.generate(PROMPTS, mixed)]
    alone = [tiny_engine.generate([p], [s])[0].token_ids for p, s in zip(PROMPTS, mixed, strict=True)]
    assert together == alone


def test_prompt_chunking_changes_nothing(tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tiny_engine.generate(PROMPTS, SAMPLED)
    for chunk in (1, 7):
        monkeypatch.setattr(scheduler, "PREFILL_CHUNK", chunk)
        chunked = tiny_engine.generate(PROMPTS, SAMPLED)
        assert [o.token_ids for o in chunked] == [o.token_ids for o in whole]
        assert [o.acceptance for o in chunked] == [o.acceptance for o in whole]


def test_seed_determines_the_text(tiny_engine: Engine) -> None:
    other = SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.8, seed=12)
    assert _tokens(tiny_engine, SAMPLED) == _tokens(tiny_engine, SAMPLED)
    assert _tokens(tiny_engine, SAMPLED) != _tokens(tiny_engine, other)


def test_a_drawn_seed_is_reported_and_reproduces_the_text(tiny_engine: Engine) -> None:
    first = tiny_engine.generate(PROMPTS[:1], SamplingParams(max_tokens=24, temperature=1.0))[0]
    again = tiny_engine.generate(PROMPTS[:1], SamplingParams(max_tokens=24, temperature=1.0, seed=first.seed))[0]
    assert again.token_ids == first.token_ids


def test_generation_ends_at_the_cache_limit(tiny_engine: Engine) -> None:
    prompt = [3] * 90
    output = tiny_engine.generate([prompt], SamplingParams(max_tokens=1000, ignore_eos=True))[0]
    assert len(output.token_ids) == tiny_engine.max_seq_len - 90
    assert output.finish_reason == "length"
    plain = tiny_engine.generate([prompt], SamplingParams(max_tokens=1000, ignore_eos=True), num_speculative_tokens=0)
    assert plain[0].token_ids == output.token_ids


def test_a_stream_gives_the_generated_text_in_pieces(tiny_engine: Engine) -> None:
    whole = tiny_engine.generate(["def main("], SAMPLED)[0]
    stream = tiny_engine.stream("def main(", SAMPLED)
    with pytest.raises(UsageError, match="not finished"):
        _ = stream.result
    pieces = list(stream)
    assert "".join(p.text for p in pieces) == whole.text
    assert [t for p in pieces for t in p.token_ids] == list(whole.token_ids)
    assert pieces[-1].finish_reason == "length"
    assert stream.result.token_ids == whole.token_ids


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
    stop=st.lists(st.sampled_from(["a", "!", "zzzzzz", "\ufffd", "%&", "é"]), max_size=2).map(tuple),
    temperature=st.sampled_from([0.0, 0.8, 50.0]),
    max_tokens=st.integers(1, 30),
    ignore_eos=st.booleans(),
    k=st.integers(0, 6),
)
def test_the_deltas_of_a_stream_hold_every_token_and_all_of_the_text(
    tiny_engine: Engine, prompt: list[int], k: int, **policy: Any
) -> None:
    stream = tiny_engine.stream(prompt, SamplingParams(seed=3, **policy), num_speculative_tokens=k)
    deltas = list(stream)
    assert tuple(t for d in deltas for t in d.token_ids) == stream.result.token_ids
    assert "".join(d.text for d in deltas) == stream.result.text
    assert [d.finish_reason for d in deltas] == [None] * (len(deltas) - 1) + [stream.result.finish_reason]
    assert all(d.token_ids for d in deltas)


def test_a_character_of_several_tokens_and_special_tokens_are_streamed_whole(demo_engine: Path) -> None:
    engine = Engine.load(demo_engine, threads=1, check="sizes")
    for seed in range(3):
        params = SamplingParams(max_tokens=40, temperature=50.0, seed=seed, ignore_eos=True)
        stream = engine.stream("# ä 漢字\n", params)
        deltas = list(stream)
        assert any(not d.text for d in deltas), "this seed shows nothing"
        assert tuple(t for d in deltas for t in d.token_ids) == stream.result.token_ids
        assert "".join(d.text for d in deltas) == stream.result.text


def test_text_continues_the_prompt_with_a_tokenizer_that_trims_texts(demo_engine: Path, tmp_path: Path) -> None:
    """As Llama 2's: a completion begins with the space before its first word, and a message does not."""
    content = json.loads((demo_engine / "tokenizer.json").read_text())
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    content["decoder"] = {"type": "Sequence", "decoders": [content["decoder"], {"type": "Fuse"}, strip]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with Engine.load(demo_engine) as loaded:
        vocab, manifest = loaded.manifest.shapes.vocab_size, loaded.manifest
        tokenizer, template = Tokenizer(tmp_path, (), vocab), "{{ messages[0].content }}"
        (space,) = tokenizer.encode(" self")
        params = SamplingParams(max_tokens=2, allowed_token_ids=[space])
        with Engine(demo_engine, manifest, loaded._backend, tokenizer, chat_template=template) as engine:
            assert [each.text for each in engine.generate(["def", "a ="], params)] == [" self self"] * 2
            messages: Any = [{"role": "user", "content": "def"}]
            assert engine.chat(messages, params).text == "self self"
            messages.append({"role": "assistant", "content": "def"})
            template = "{% for each in messages %}{{ each.content }}{% endfor %}"
        with Engine(demo_engine, manifest, loaded._backend, tokenizer, chat_template=template) as engine:
            assert engine.chat(messages, params, continue_final_message=True).text == " self self"


def test_generation_can_start_at_the_last_delta_of_a_stream(tiny_engine: Engine) -> None:
    for delta in tiny_engine.stream([5, 6], GREEDY):
        if delta.finish_reason:
            assert _tokens(tiny_engine, GREEDY)


def test_an_abandoned_stream_leaves_the_engine_usable(tiny_engine: Engine) -> None:
    expected = _tokens(tiny_engine, GREEDY)
    next(iter(tiny_engine.stream([5, 6], GREEDY)))
    assert _tokens(tiny_engine, GREEDY) == expected


def test_streams_and_calls_run_concurrently(tiny_engine: Engine) -> None:
    prompts: list[Any] = [[5, 6], "def main(", [7]]
    policies = [GREEDY, SAMPLED, GREEDY]
    whole = [tiny_engine.generate([p], s)[0].token_ids for p, s in zip(prompts, policies, strict=True)]
    streams = [iter(tiny_engine.stream(p, s)) for p, s in zip(prompts, policies, strict=True)]
    pieces = [[next(stream)] for stream in streams]
    assert tiny_engine.generate(prompts[:1], GREEDY)[0].token_ids == whole[0]
    tiny_engine.target_logits([5, 6])
    for stream, mine, expected in zip(streams, pieces, whole, strict=True):
        assert tuple(t for p in [*mine, *stream] for t in p.token_ids) == expected


def test_stream_keeps_its_k_when_another_is_created(tiny_engine: Engine) -> None:
    plain = tiny_engine.stream([5, 6], GREEDY, num_speculative_tokens=0)
    tiny_engine.stream([5, 6], GREEDY)
    list(plain)
    assert plain.result.acceptance.rounds == 0


def test_stop_string_ends_the_text_before_it(tiny_engine: Engine) -> None:
    whole = tiny_engine.generate(PROMPTS[:1], SAMPLED)[0].text
    stop = whole[6:8]
    cut = SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.8, seed=11, stop=(stop,))
    for k in (0, 4):
        output = tiny_engine.generate(PROMPTS[:1], cut, num_speculative_tokens=k)[0]
        assert output.text == whole[: whole.index(stop)]
        assert output.finish_reason == "stop"


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([], "empty"),
        ("", "empty"),
        ([1, VOCAB], "out of range"),
        ([-1], "out of range"),
        ([3] * 96, "maximum context length is 96 tokens"),
    ],
    ids=["no ids", "no text", "id too large", "id negative", "too long"],
)
def test_a_bad_prompt_is_refused_before_anything_runs(tiny_engine: Engine, prompt: list[int] | str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        tiny_engine.generate([[3, 4], prompt])


@pytest.mark.parametrize("k", [-1, 7])
def test_a_k_that_the_caches_have_no_room_for_is_refused(tiny_engine: Engine, k: int) -> None:
    with pytest.raises(UsageError, match="from 0"):
        tiny_engine.generate([[3]], num_speculative_tokens=k)


def test_one_string_for_a_list_of_prompts_is_refused(tiny_engine: Engine) -> None:
    with pytest.raises(UsageError, match="must be a list"):
        tiny_engine.generate("def f")


def test_params_must_be_one_or_one_each(tiny_engine: Engine) -> None:
    with pytest.raises(UsageError, match="2 SamplingParams for 1 prompts"):
        tiny_engine.generate([[3]], [GREEDY, GREEDY])


def test_logits_of_a_sequence_agree_with_transformers(tiny_engine: Engine, tiny_pair: Pair) -> None:
    model = torch_reference.load_target(tiny_pair.target, tiny_pair.config)
    spec, _ = tiny_pair.specs()
    expected, _ = torch_reference.target_pass(model, spec, PROMPTS[3])
    np.testing.assert_allclose(tiny_engine.target_logits(PROMPTS[3]), expected.numpy(), atol=1e-4)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_batch_at_any_k_gives_the_plain_text(tiny_engine: Engine, data: st.DataObject) -> None:
    prompt = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20)
    prompts = data.draw(st.lists(prompt, min_size=1, max_size=5))
    policy = st.builds(
        SamplingParams,
        max_tokens=st.integers(1, 14),
        temperature=st.sampled_from([0.0, 0.7, 1.5]),
        top_k=st.sampled_from([0, 1, 5]),
        top_p=st.sampled_from([1.0, 0.8]),
        seed=st.integers(0, 99),
        ignore_eos=st.booleans(),
    )
    params = [data.draw(policy) for _ in prompts]
    k = data.draw(st.integers(1, 6))
    plain = tiny_engine.generate(prompts, params, num_speculative_tokens=0)
    fast = tiny_engine.generate(prompts, params, num_speculative_tokens=k)
    assert [(o.token_ids, o.text, o.finish_reason) for o in fast] == [
        (o.token_ids, o.text, o.finish_reason) for o in plain
    ]
    for output in fast:
        rounds_, accepted = output.acceptance.rounds, output.acceptance.accepted
        assert len(output.token_ids) <= 1 + rounds_ + accepted  # the last round continues past the end
        assert output.acceptance.drafted == k * rounds_


@pytest.mark.parametrize(
    "prompts",
    [None, 5, b"abc", {"a": 1}, (p for p in ["a"]), {"a"}]
    + [[each] for each in (None, 5, b"abc", {"a": 1}, ["5"], [5.0], "a\udcff")],
)
def test_invalid_prompt_list_is_rejected_by_name(tiny_engine: Engine, prompts: Any) -> None:
    with pytest.raises(UsageError, match=r"^prompts"):
        tiny_engine.generate(prompts)


def test_array_ids_equal_list_ids(tiny_engine: Engine) -> None:
    expected = tiny_engine.generate([[5, 6], [7, 8]], GREEDY)
    for prompts in (np.array([[5, 6], [7, 8]]), [np.array([5, 6], np.int32), (7, np.int64(8))]):
        assert [o.token_ids for o in tiny_engine.generate(prompts, GREEDY)] == [o.token_ids for o in expected]


@pytest.mark.parametrize("params", [{"max_tokens": 3}, [None], "greedy", 5, [GREEDY, {"max_tokens": 3}]])
def test_invalid_policy_is_rejected_by_name(tiny_engine: Engine, params: Any) -> None:
    with pytest.raises(UsageError, match=r"^params"):
        tiny_engine.generate([[3]], params)
    with pytest.raises(UsageError, match="params"):
        tiny_engine.stream([3], params)


@pytest.mark.parametrize("k", [2.5, "3", True, [1], np.float64(2)])
def test_non_integer_k_is_rejected(tiny_engine: Engine, k: Any) -> None:
    with pytest.raises(UsageError, match="num_speculative_tokens must be an integer from 0 to 6"):
        tiny_engine.generate([[3]], num_speculative_tokens=k)
    with pytest.raises(UsageError, match="num_speculative_tokens must be an integer"):
        tiny_engine.draft_logits([3], k)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        *[({"threads": threads}, "threads must be an integer from 1 to") for threads in (10**6, -1, 0, 1.0, "1", True)],
        *[({"max_batch_size": size}, "max_batch_size must be an integer of 1 or more") for size in (0, 1.5, "2", None)],
        *[({"check": check}, "check must be 'auto' or 'hashes' or 'sizes'") for check in ("no", True, None, ["sizes"])],
        ({"path": None}, "path must be a str or a Path"),
        ({"path": b"engine"}, "path must be a str or a Path"),
    ],
)
def test_load_arguments_are_validated(tiny_folder: Path, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Engine.load(**{"path": tiny_folder, **arguments})


def test_changed_file_of_equal_size_is_found_unless_only_sizes_are_checked(tiny_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "engine"))
    path = folder / "resolved_config.yaml"
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    with pytest.raises(EnvironmentProblem, match=r"resolved_config\.yaml was changed after the build"):
        Engine.load(folder, threads=1)
    assert Engine.load(folder, threads=1, check="sizes").checked == "sizes"
    assert Engine.load(tiny_folder, threads=1).checked == "hashes"


def test_flipped_bit_in_large_weights_is_found_only_by_hashes(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "engine"))
    with (folder / "target" / "model.onnx.data").open("r+b") as file:
        first = file.read(1)[0]
        file.seek(0)
        file.write(bytes([first ^ 1]))
    with pytest.raises(EnvironmentProblem, match=r"model\.onnx\.data was changed after the build"):
        Engine.load(folder, threads=1)
    monkeypatch.setattr(checks, "LARGE", 1)
    assert Engine.load(folder, threads=1).checked == "auto"
    with pytest.raises(EnvironmentProblem, match=r"model\.onnx\.data was changed after the build"):
        Engine.load(folder, threads=1, check="hashes")
    (folder / "resolved_config.yaml").write_bytes((folder / "resolved_config.yaml").read_bytes()[:-1] + b" ")
    with pytest.raises(EnvironmentProblem, match=r"resolved_config\.yaml was changed after the build"):
        Engine.load(folder, threads=1)


def publish_during_loads(monkeypatch: pytest.MonkeyPatch, folder: Path, others: list[Path]) -> None:
    """Let each of the next loads of ``folder`` find another engine in its place, after its files were checked."""

    def open_another(*arguments: Any) -> Any:
        if others:
            folder.rename(folder.with_name(f"replaced-{len(others)}"))
            others.pop(0).rename(folder)
        return open_backend(*arguments)

    monkeypatch.setattr(engine_module, "open_backend", open_another)


def another_engine(tiny_folder: Path, path: Path, eos_token_id: int) -> Path:
    shutil.copytree(tiny_folder, path)
    replace(Manifest.read(path), eos_token_ids=(eos_token_id,)).write(path)
    return path


def test_engine_replaced_during_its_load_is_loaded_again(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = another_engine(tiny_folder, tmp_path / "engine", 5)
    publish_during_loads(monkeypatch, folder, [another_engine(tiny_folder, tmp_path / "other", 6)])
    with Engine.load(folder, threads=1) as engine:
        assert engine.manifest == Manifest.read(folder)
        assert engine.manifest.eos_token_ids == (6,)


def test_error_of_a_replaced_engine_is_not_that_of_its_successor(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = another_engine(tiny_folder, tmp_path / "engine", 5)
    other = another_engine(tiny_folder, tmp_path / "other", 6)
    publish_during_loads(monkeypatch, folder, [other])
    monkeypatch.setattr(engine_module, "Tokenizer", refuse_once(Tokenizer))
    with Engine.load(folder, threads=1) as engine:
        assert engine.manifest.eos_token_ids == (6,)


def refuse_once(call: Any) -> Any:
    """Return ``call`` with an error of its first use, as if a file were missing between two engines."""
    errors = [EnvironmentProblem("tokenizer.json is missing")]

    def run(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return call(*arguments)

    return run


def test_engine_that_every_load_finds_replaced_is_refused(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = another_engine(tiny_folder, tmp_path / "engine", 5)
    others = [another_engine(tiny_folder, tmp_path / f"other-{each}", 6) for each in range(3)]
    publish_during_loads(monkeypatch, folder, others)
    with pytest.raises(EnvironmentProblem, match="was replaced while it was loaded") as caught:
        Engine.load(folder, threads=1)
    assert "when no command replaces it" in caught.value.fix


@pytest.mark.parametrize("temperature", [1e-320, 1e-46, 1e-45, 1e-40, 1e-38, 1e-37, 9e-6])
def test_a_temperature_too_small_to_divide_by_is_greedy(tiny_engine: Engine, temperature: float) -> None:
    params = SamplingParams(max_tokens=24, ignore_eos=True, temperature=temperature, seed=1)
    assert _tokens(tiny_engine, params) == _tokens(tiny_engine, GREEDY)


def test_extreme_policies_draw_the_same_with_drafts(tiny_engine: Engine) -> None:
    for policy in ({"temperature": 1e300}, {"temperature": 1e-5}, {"top_k": 2**40}, {"top_p": 1e-46}, {"min_p": 1}):
        params = SamplingParams(**{"max_tokens": 12, "ignore_eos": True, "temperature": 1.0, "seed": 2**70, **policy})
        assert _tokens(tiny_engine, params) == _tokens(tiny_engine, params, 0)


def test_calls_from_several_threads_run_concurrently(tiny_engine: Engine) -> None:
    expected = _tokens(tiny_engine, SAMPLED)
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda _: _tokens(tiny_engine, SAMPLED), range(8))] == [expected] * 8


def test_a_stream_read_by_two_threads_gives_each_piece_once(tiny_engine: Engine) -> None:
    expected = tiny_engine.generate(["def main("], SAMPLED)[0].token_ids
    for _ in range(5):
        stream = tiny_engine.stream("def main(", SAMPLED, num_speculative_tokens=0)
        with ThreadPoolExecutor(2) as pool:
            read = [*pool.map(lambda _, stream=stream: [t for d in stream for t in d.token_ids], range(2))]
        assert sorted([*read[0], *read[1]]) == sorted(expected)
        assert stream.result.token_ids == expected


def test_an_unknown_draft_method_is_refused(tiny_engine: Engine) -> None:
    with pytest.raises(UsageError, match="draft must be peagle, peagle-chain, ngram, none"):
        Engine(tiny_engine.folder, tiny_engine.manifest, tiny_engine._backend, tiny_engine.tokenizer, draft="eagle")


def test_a_truncated_prompt_keeps_its_last_tokens(tiny_engine: Engine) -> None:
    room = tiny_engine.max_seq_len
    for kept, length in ((3, 3), (-1, room - 1), (room, room - 1)):
        params = SamplingParams(max_tokens=1, truncate_prompt_tokens=kept)
        ids = [each % 50 for each in range(room + 7)]
        assert tiny_engine.generate([ids], params)[0].prompt_token_ids == tuple(ids[-length:])
        assert tiny_engine.generate([[7, 8]], params)[0].prompt_token_ids == (7, 8)
    for bad in (0, -2, True, 1.0, room + 1):
        with pytest.raises(UsageError, match=r"^truncate_prompt_tokens"):
            tiny_engine.generate([[7]], SamplingParams(truncate_prompt_tokens=bad))  # type: ignore[arg-type]


def test_requests_can_be_limited_below_the_built_context(tiny_engine: Engine) -> None:
    engine = tiny_engine
    with Engine(engine.folder, engine.manifest, engine._backend, engine.tokenizer, max_seq_len=8) as short:
        assert short.max_seq_len == 8
        (output,) = short.generate([[5, 6]], SamplingParams(max_tokens=50, ignore_eos=True))
        assert len(output.token_ids) == 6
        assert output.token_ids == _tokens_of(engine, [5, 6])
        with pytest.raises(UsageError, match="8 tokens"):
            short.generate([[5] * 8], GREEDY)
    for bad in (1, engine.manifest.shapes.max_seq_len + 1, 4.0):
        with pytest.raises(UsageError, match="max_seq_len must be an integer from 2"):
            Engine.load(engine.folder, max_seq_len=bad)  # type: ignore[arg-type]


def _tokens_of(engine: Engine, prompt: list[int]) -> tuple[int, ...]:
    return engine.generate([prompt], SamplingParams(max_tokens=6, ignore_eos=True))[0].token_ids
