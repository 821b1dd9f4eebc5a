"""Requests from any thread or task at any time: each ends once, with the text that it has alone."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.engines import Engine, EngineClosed, EngineFailed, QueueFull, RequestOutput, SamplingParams, Submission
from peagle.engines.backends.base import Steps
from peagle.engines.backends.onnxruntime import backend as onnxruntime
from peagle.engines.draft_methods.lanes import Emission
from peagle.engines.text.tokenizer import Tokenizer
from peagle.plugins.errors import EnvironmentProblem, UsageError
from tests.engines.scheduling.test_scheduler import Late
from tests.garbage import collected
from tests.models import VOCAB
from tests.tokenizer_files import PANICS

LONG = SamplingParams(max_tokens=80, ignore_eos=True)
SHORT = SamplingParams(max_tokens=9, ignore_eos=True)


@pytest.fixture(scope="module")
def row_by_row(tiny_folder: Path) -> Engine:
    """The tiny engine without CPU kernels, so its rows run one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxruntime, "supports_rows", lambda *_: False)
        engine = Engine.load(tiny_folder, max_batch_size=3, threads=1, check="sizes")
    assert not engine._backend._lanes.takes_rows  # type: ignore[attr-defined]
    return engine


@pytest.fixture(scope="module")
def late(tiny_engine: Engine) -> Engine:
    """The tiny engine, whose tokens are read a round late, as on a GPU."""
    return _like(tiny_engine, Late(tiny_engine._backend, 1))  # type: ignore[arg-type]


def _like(engine: Engine, backend: Any = None, **options: int | None) -> Engine:
    """The same engine with a loop of its own, to be closed before another one runs."""
    return Engine(engine.folder, engine.manifest, backend or engine._backend, engine.tokenizer, **options)


@contextmanager
def _held(engine: Engine) -> Iterator[None]:
    """Nothing runs within the block; what is submitted waits."""
    begun, released = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        released.wait()

    holder = threading.Thread(target=engine._loop.run_exclusive, args=(wait,))
    holder.start()
    begun.wait()
    try:
        yield
    finally:
        released.set()
        holder.join()


def _require_nothing_left(engine: Engine) -> None:
    loop = engine._loop
    assert (loop._count, loop._in_flight) == (0, set())
    assert loop._scheduler is None or loop._scheduler.is_idle
    assert not engine._backend._lanes.windows()  # type: ignore[attr-defined]


PROMPTS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)
PROMPTS |= st.builds(lambda n, token: [token, 3] * n, st.integers(15, 45), st.integers(0, VOCAB - 1))
POLICIES = st.builds(
    SamplingParams,
    max_tokens=st.sampled_from([1, 4, 25, 200]),
    temperature=st.sampled_from([0.0, 0.9]),
    seed=st.integers(0, 9),
    ignore_eos=st.booleans(),
    stop=st.sampled_from([(), ("!",)]),
)
DRAFTS = st.sampled_from([{}, {"num_speculative_tokens": 1}, {"num_speculative_tokens": 6}]) | st.sampled_from(
    [{"draft": "none"}, {"draft": "ngram"}, {"draft": "ngram", "num_speculative_tokens": 2}]
)
# What a request reads of earlier ones when it arrives, and the number of pieces after which it is cancelled.
TIMES = st.tuples(st.lists(st.integers(0, 6), max_size=3), st.none() | st.integers(0, 4))


@pytest.mark.parametrize("lanes", ["tiny_engine", "row_by_row", "late"])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=st.lists(st.tuples(PROMPTS, POLICIES, DRAFTS, TIMES), min_size=1, max_size=7),
    max_prefill_tokens=st.sampled_from([1, 7, 64, None]),
)
def test_request_gets_its_own_text(
    request: pytest.FixtureRequest, tiny_engine: Engine, lanes: str, asked: list[Any], max_prefill_tokens: int | None
) -> None:
    """With any concurrent requests, arrivals, pieces, drafts and cancellations."""
    alone = [tiny_engine.generate([prompt], params, draft="none")[0] for prompt, params, *_ in asked]
    with _like(request.getfixturevalue(lanes), max_prefill_tokens=max_prefill_tokens) as engine:
        _run_beside_each_other(engine, asked, alone)
    _require_nothing_left(engine)


def _run_beside_each_other(engine: Engine, asked: list[Any], alone: list[RequestOutput]) -> None:
    submissions: list[Submission] = []
    pieces: list[list[Any]] = []
    for prompt, params, drafts, (reads, _) in asked:
        for other in reads:
            if other < len(submissions):
                pieces[other] += [*_some(submissions[other], 2)]
        submissions.append(engine.submit(prompt, params, **drafts))
        pieces.append([])
    for submission, got, (*_, (_, cancel_after)) in zip(submissions, pieces, asked, strict=True):
        if cancel_after is not None:
            got += [*_some(submission, cancel_after)]
            submission.cancel()
    for submission, got, whole, (*_, (_, cancel_after)) in zip(submissions, pieces, alone, asked, strict=True):
        got += submission
        _require_told_once(submission, got)
        result = submission.result()
        if result.finish_reason == "abort":
            assert cancel_after is not None
            assert result.token_ids == whole.token_ids[: len(result.token_ids)]
        else:
            assert (result.token_ids, result.text) == (whole.token_ids, whole.text)
            assert result.finish_reason == whole.finish_reason


def _some(submission: Submission, count: int) -> Iterator[Any]:
    """Up to so many pieces."""
    return (piece for _, piece in zip(range(count), submission, strict=False))


def _require_told_once(submission: Submission, pieces: Sequence[Any]) -> None:
    result = submission.result()
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + [result.finish_reason]
    assert tuple(token for piece in pieces for token in piece.token_ids) == result.token_ids
    assert "".join(piece.text for piece in pieces) == result.text
    assert list(submission) == []


def test_more_requests_than_the_limit_are_refused_by_number_and_wait_in_calls(tiny_engine: Engine) -> None:
    (expected,) = tiny_engine.generate([[5, 6]], SHORT)
    engine = _like(tiny_engine, max_queue_size=1)
    with _held(engine):
        accepted = [engine.submit([5, 6], SHORT) for _ in range(4)]
        with pytest.raises(QueueFull, match="has 4 requests") as full:
            engine.submit([5, 6], SHORT)
        assert full.value.limit == 4
        patient = threading.Thread(target=lambda: accepted.append(engine.stream([5, 6], SHORT)._submission))
        patient.start()
    patient.join()
    assert [each.result().token_ids for each in accepted] == [expected.token_ids] * 5
    engine.submit([5, 6], SHORT).result()
    engine.close()


def test_a_long_list_leaves_room_for_others(tiny_engine: Engine) -> None:
    """And comes back in its order."""
    engine = _like(tiny_engine, max_queue_size=4)
    prompts = [[number, 7] for number in range(20)]
    told: list[RequestOutput] = []
    with _held(engine):
        list_ = threading.Thread(target=lambda: told.extend(engine.generate(prompts, SHORT)))
        list_.start()
        while engine._loop._count < 6:
            time.sleep(0.001)
        other = engine.submit([5, 6], SHORT)
    list_.join()
    assert [output.prompt_token_ids for output in told] == [tuple(prompt) for prompt in prompts]
    assert other.result().finish_reason == "length"
    engine.close()
    _require_nothing_left(engine)


def test_waiting_request_can_be_cancelled_timed_out_or_dropped(tiny_engine: Engine) -> None:
    engine = _like(tiny_engine)
    with _held(engine):
        late, unwanted = engine.submit([5, 6], LONG, timeout=0.001), engine.submit([5, 6], LONG)
        unwanted.cancel()
        forgotten = engine.submit([5, 6], LONG)
        delivery, held = forgotten._delivery, weakref.ref(forgotten)
        del forgotten
        assert collected(lambda: held() is None)
        time.sleep(0.002)
    ends = [late.result(), unwanted.result(), delivery.output()[1]]
    assert [end and end.finish_reason for end in ends] == ["timeout", "abort", "abort"]
    assert [end and end.token_ids for end in ends] == [()] * 3
    engine.close()
    _require_nothing_left(engine)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "1", True])
def test_invalid_timeout_is_rejected_by_name(tiny_engine: Engine, timeout: Any) -> None:
    with pytest.raises(UsageError, match=r"^timeout"):
        tiny_engine.submit([5], timeout=timeout)


@pytest.mark.parametrize("priority", [1 << 31, 0.5, "1", True])
def test_invalid_priority_is_rejected_by_name(tiny_engine: Engine, priority: Any) -> None:
    with pytest.raises(UsageError, match=r"^priority"):
        tiny_engine.submit([5], priority=priority)


def _panic(said: str) -> BaseException:
    """pyo3's exception for a panic in a Rust library; its class is not an ``Exception``."""
    return type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})(said)


class _Failing:
    """A backend that fails in a round, and beginning anew where it is not ``usable``."""

    def __init__(self, backend: Any, *, usable: bool, error: BaseException | None = None) -> None:
        self._backend, self._usable, self.fails = backend, usable, True
        self._error = error or RuntimeError("a cosmic ray")
        self.in_round, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def begin(self) -> None:
        if not self._usable and not self.fails:
            raise MemoryError("the device is gone")
        self._backend.begin()

    def round(self, steps: Steps, k: int, **options: Any) -> Emission:
        if self.fails:
            self.fails = False
            self.in_round.set()
            self.goes_on.wait()
            raise self._error
        emission: Emission = self._backend.round(steps, k, **options)
        return emission


@pytest.mark.parametrize("usable", [True, False])
def test_failed_pass_ends_every_request_with_an_explanation(tiny_engine: Engine, usable: bool) -> None:
    engine = _like(tiny_engine, _Failing(tiny_engine._backend, usable=usable))
    with _held(engine):
        submissions = [engine.submit([5, number], LONG) for number in range(5)]
    for submission in submissions:
        with pytest.raises(EngineFailed, match="the engine failed during a pass") as failed:
            submission.result()
        assert failed.value.why == "RuntimeError: a cosmic ray"
        assert failed.value.usable == usable
    if usable:
        expected = tiny_engine.generate([[5, 6]], LONG)
        assert engine.generate([[5, 6]], LONG)[0].token_ids == expected[0].token_ids
    else:
        with pytest.raises(EngineFailed, match="load the engine again") as failed:
            engine.submit([5])
        assert not failed.value.usable
    engine.close()
    tiny_engine._backend.begin()


@pytest.mark.parametrize("usable", [True, False])
@pytest.mark.parametrize("error", [_panic("Onig: too hard"), SystemExit(1), KeyboardInterrupt(), MemoryError()])
def test_no_request_hangs_on_any_failure(tiny_engine: Engine, error: BaseException, usable: bool) -> None:
    """Neither one that runs, nor one that waits, taken in or not, nor a call that needs all slots."""
    backend = _Failing(tiny_engine._backend, usable=usable, error=error)
    engine = _like(tiny_engine, backend)
    backend.goes_on.clear()
    submissions = [engine.submit([5, number], LONG) for number in range(5)]
    backend.in_round.wait()
    submissions += [engine.submit([6, number], LONG) for number in range(3)]
    failures: list[BaseException] = []

    def logits() -> None:
        try:
            engine.target_logits([5])
        except EngineFailed as failure:
            failures.append(failure)

    alone = threading.Thread(target=logits)
    alone.start()
    while len(engine._loop._in_flight) < 9:
        time.sleep(0.001)
    backend.goes_on.set()
    for submission in submissions:
        with pytest.raises(EngineFailed, match="the engine failed during a pass") as failed:
            submission.result()
        assert type(error).__name__ in failed.value.why
        failures.append(failed.value)
    alone.join()
    assert [failure.usable for failure in failures if isinstance(failure, EngineFailed)] == [usable] * 9
    if usable:
        engine.require_open()
        assert engine.generate([[5, 6]], SHORT)[0].finish_reason == "length"
    else:
        for call in (engine.require_open, lambda: engine.submit([5]), lambda: engine.target_logits([5])):
            with pytest.raises(EngineFailed, match="load the engine again"):
                call()
    engine.close()
    assert not engine._loop._thread.is_alive()  # type: ignore[union-attr]
    tiny_engine._backend.begin()
    assert (engine._loop._count, engine._loop._in_flight) == (0, set())


def test_dead_thread_leaves_no_waiter(tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the failure of a pass cannot be handled."""
    engine = _like(tiny_engine, _Failing(tiny_engine._backend, usable=True))
    monkeypatch.setattr(engine._loop, "_restart", lambda error: exec("raise MemoryError") or error)
    with _held(engine):
        submissions = [engine.submit([5, number], LONG) for number in range(5)]
    for submission in submissions:
        with pytest.raises(EngineFailed) as failed:
            submission.result()
        assert not failed.value.usable
    with pytest.raises(EngineFailed, match="MemoryError"):
        engine.submit([5])
    engine.close()
    tiny_engine._backend.begin()


def test_a_thread_that_cannot_start_is_an_error_and_is_tried_again(
    tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _like(tiny_engine)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(EnvironmentProblem, match="cannot start the engine's thread"):
            engine.submit([5, 6], SHORT)
    assert engine.submit([5, 6], SHORT).result().finish_reason == "length"
    engine.close()
    _require_nothing_left(engine)


def test_decoder_panic_ends_only_its_request(tiny_engine: Engine, tmp_path: Path) -> None:
    content = json.loads((tiny_engine.folder / "tokenizer.json").read_text())
    panics = {"type": "Replace", "pattern": {"Regex": f"(?=a){PANICS}"}, "content": "x"}
    content["decoder"] = {"type": "Sequence", "decoders": [content["decoder"], panics]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = Tokenizer(tmp_path, tiny_engine.tokenizer.eos_token_ids)
    a, b = (content["model"]["vocab"][letter] for letter in "ab")
    with Engine(tiny_engine.folder, tiny_engine.manifest, tiny_engine._backend, tokenizer) as engine:
        with _held(engine):
            letters = [engine.submit([5, 6], SamplingParams(max_tokens=20, allowed_token_ids=[i])) for i in (a, b)]
        with pytest.raises(EnvironmentProblem, match="tokenizer cannot decode the text") as error:
            letters[0].result()
        assert "retry-limit-in-match" in error.value.why
        assert letters[1].result().text == "b" * 20
        assert engine.submit([5, 6], SamplingParams(max_tokens=3, allowed_token_ids=[b])).result().text == "bbb"
        _require_nothing_left(engine)


def test_close_ends_running_requests_and_waits(tiny_engine: Engine) -> None:
    with _like(tiny_engine) as engine, _held(engine):
        submissions = [engine.submit([5, number], LONG) for number in range(5)]
        threading.Thread(target=engine.close).start()
        while not engine._loop.is_closed:
            time.sleep(0.001)
        for call in (engine.submit, engine.stream, lambda prompt: engine.generate([prompt]), engine.target_logits):
            with pytest.raises(EngineClosed):
                call([5])
    assert {each.result().finish_reason for each in submissions} <= {"abort", "length"}
    assert submissions[-1].result().finish_reason == "abort"
    assert not engine._loop._thread.is_alive()  # type: ignore[union-attr]
    engine.close()
    _require_nothing_left(engine)


def test_draining_lets_all_end(tiny_engine: Engine) -> None:
    engine = _like(tiny_engine)
    with _held(engine):
        submissions = [engine.submit([5, number], SHORT) for number in range(5)]
        engine._loop.retire(drain=True)
    engine.close(drain=True)
    assert [each.result().finish_reason for each in submissions] == ["length"] * 5


def test_dropped_engine_ends_requests_and_thread(tiny_engine: Engine) -> None:
    engine = _like(tiny_engine)
    submission, thread = engine.submit([5, 6], SHORT), engine._loop._thread
    held = weakref.ref(engine)
    del engine
    assert collected(lambda: held() is None)
    assert submission.result().finish_reason == "length"
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()


def test_tasks_wait_without_holding_their_event_loop(tiny_engine: Engine) -> None:
    prompts: list[Any] = [[5, 6], "def main(", [7], [8, 8]]
    alone = tiny_engine.generate(prompts, SHORT)
    engine = _like(tiny_engine)

    async def pieces(prompt: Any) -> list[Any]:
        return [piece async for piece in engine.submit_async(prompt, SHORT)]

    async def main() -> tuple[list[RequestOutput], list[list[Any]]]:
        with _held(engine):  # so that tasks would wait forever if one of them blocked the others
            whole = [asyncio.ensure_future(_awaited(engine, prompt)) for prompt in prompts]
            parts = [asyncio.ensure_future(pieces(prompt)) for prompt in prompts]
            while engine._loop._count < 8:
                await asyncio.sleep(0.001)
        return await asyncio.gather(*whole), await asyncio.gather(*parts)

    results, streamed = asyncio.run(main())
    assert [each.token_ids for each in results] == [each.token_ids for each in alone]
    assert [tuple(t for piece in each for t in piece.token_ids) for each in streamed] == [o.token_ids for o in alone]
    engine.close()


async def _awaited(engine: Engine, prompt: Any) -> RequestOutput:
    return await engine.submit_async(prompt, SHORT)


def test_cancelled_task_cancels_its_request(tiny_engine: Engine) -> None:
    engine = _like(tiny_engine)

    async def main() -> None:
        with _held(engine):
            handle = engine.submit_async([5, 6], LONG)
            task = asyncio.ensure_future(handle._result())
            while engine._loop._count < 1:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await handle).finish_reason == "abort"
        with pytest.raises(UsageError, match="prompt is empty"):
            await engine.submit_async([])

    asyncio.run(main())
    engine.close()
    _require_nothing_left(engine)


_PROGRAM = """
import os, sys
from peagle.engines import Engine, SamplingParams
from peagle.plugins.errors import UsageError

engine = Engine.load(sys.argv[1], threads=1, check="sizes")
long = SamplingParams(max_tokens=90, ignore_eos=True)
running = [engine.submit([5, 6], long) for _ in range(9)]
if os.fork() == 0:
    for call in (lambda: engine.generate([[5]]), running[0].result):
        try:
            call()
        except UsageError as error:
            print(error.what, flush=True)
    os._exit(0)  # as multiprocessing does
os.wait()
"""


def test_fork_is_rejected_and_program_can_exit_during_requests(tiny_engine: Engine) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(tiny_engine.folder)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["this engine was loaded before the process was forked"] * 2


_INTERRUPTED = """
import os, signal, sys, threading, time, traceback
from peagle.engines import Engine, SamplingParams

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs behind it without one
engine = Engine.load(sys.argv[1], threads=1, check="sizes")
begun, never = threading.Event(), threading.Event()
alone = threading.Thread(target=engine._loop.run_exclusive, args=(lambda: (begun.set(), never.wait()),), daemon=True)
alone.start()
begun.wait()  # the engine is busy, so that what is submitted waits

def interrupt(count):
    while len(engine._loop._in_flight) < count:
        time.sleep(0.001)
    time.sleep(0.1)  # Python misses a signal that arrives just before the main thread blocks, until it wakes
    os.kill(os.getpid(), signal.SIGINT)

calls = {
    "generate": (lambda: engine.generate([[5, 6]] * 2), 3),
    "submit": (lambda: engine.submit([5, 6]).result(), 4),
    "stream": (lambda: list(engine.stream([5, 6])), 5),
    "logits": (lambda: engine.target_logits([5, 6]), 6),
}
for name, (call, count) in calls.items():
    threading.Thread(target=interrupt, args=(count,)).start()
    try:
        call()
    except KeyboardInterrupt as error:
        frames = traceback.extract_tb(error.__traceback__)
        files = {frame.filename.rpartition("/")[2] for frame in frames}
        kept = error
        print(name, len(frames), "threading.py" in files, error.__context__ is None or error.__suppress_context__)
unwanted = [each.delivery.is_unwanted for each in engine._loop._in_flight if hasattr(each, "delivery")]
print(unwanted[:2], flush=True)
os._exit(0)
"""


def test_ctrl_c_traceback_hides_threading_frames(tiny_engine: Engine) -> None:
    """And its requests, though the traceback is still there."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _INTERRUPTED, str(tiny_engine.folder)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["generate", "submit", "stream", "logits"], done.stderr
    assert all(line.endswith("False True") for line in lines[:-1]), lines
    assert int(lines[0].split()[1]) <= 4, lines[0]
    assert lines[-1] == "[True, True]"


def test_engine_arguments_are_validated(tiny_engine: Engine) -> None:
    folder: Path = tiny_engine.folder
    for options in ({"max_queue_size": -1}, {"max_queue_size": 1.5}, {"max_prefill_tokens": 0}):
        with pytest.raises(UsageError, match="must be an integer of"):
            Engine.load(folder, **options)  # type: ignore[arg-type]
