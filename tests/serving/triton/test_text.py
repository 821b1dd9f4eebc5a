"""Text from the real server: streamed and complete, over HTTP and gRPC, concurrent, truncated and refused."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from peagle.engines import Engine, SamplingParams
from tests.serving.triton.server_process import TritonProcess

pytestmark = pytest.mark.triton

PROMPTS = ["def gcd(a, b):", "class Stack:\n    def", "import os\n\n", "x = [", "# Sort a list\n", "while True:"]
MANY = 480  # tokens of a request that outlives its test


def grpc_stream(server: TritonProcess, requests: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Send requests on one stream; returns the responses of each, as lists by output, by its id."""
    import tritonclient.grpc as grpc

    arrived: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
    found: dict[str, list[dict[str, Any]]] = {str(index): [] for index in range(len(requests))}
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        for index, fields in enumerate(requests):
            inputs = []
            for name, (kind, value) in fields.items():
                array = np.array([[value]], np.object_ if kind == "BYTES" else None)
                each = grpc.InferInput(name, list(array.shape), kind)
                each.set_data_from_numpy(array.astype(grpc.triton_to_np_dtype(kind)))
                inputs.append(each)
            client.async_stream_infer("demo", inputs, request_id=str(index), enable_empty_final_response=True)
        left = len(requests)
        while left:
            result, error = arrived.get(timeout=60)
            assert error is None, error
            response = result.get_response()
            outputs = {each.name: result.as_numpy(each.name).reshape(-1).tolist() for each in response.outputs}
            if outputs:
                found[response.id].append(outputs)
            left -= response.parameters["triton_final_response"].bool_param
        client.stop_stream()
    return found


def test_streamed_text_is_that_of_the_engine(triton: TritonProcess, served_engine: Engine) -> None:
    (wanted,) = served_engine.generate(PROMPTS[:1], SamplingParams(max_tokens=40), num_speculative_tokens=3)
    answer = triton.stream("demo", text_input=PROMPTS[0], max_tokens=40, num_speculative_tokens=3)
    assert answer.status == 200
    assert answer.text == wanted.text
    assert len(answer.events) > 3, "it came in one piece"
    last, rest = answer.events[-1], answer.events[:-1]
    assert all("finish_reason" not in event for event in rest)
    assert (last["finish_reason"], last["num_output_tokens"]) == (wanted.finish_reason, len(wanted.token_ids))
    assert last["num_prompt_tokens"] == len(wanted.prompt_token_ids)
    assert last["num_draft_accepted"] == wanted.acceptance.accepted
    assert last["num_draft_proposed"] == wanted.acceptance.drafted
    assert last["num_draft_rounds"] == wanted.acceptance.rounds
    assert last["acceptance_length"] == pytest.approx(wanted.acceptance.acceptance_length)
    assert last["lossy"] is False


def test_whole_text_with_every_field_is_that_of_the_engine(triton: TritonProcess, served_engine: Engine) -> None:
    params = SamplingParams(
        max_tokens=48, temperature=0.7, top_k=40, top_p=0.95, min_p=0.02, seed=7, stop=["\n\n", "qq"],
        presence_penalty=0.3, frequency_penalty=0.1, repetition_penalty=1.1, min_tokens=4, logit_bias={5: -2.5},
    )  # fmt: skip
    (wanted,) = served_engine.generate(PROMPTS[1:2], params, num_speculative_tokens=2)
    fields: dict[str, Any] = {
        "max_tokens": 48, "temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.02, "random_seed": 7,
        "stop_words": ["\n\n", "qq"], "presence_penalty": 0.3, "frequency_penalty": 0.1, "repetition_penalty": 1.1,
        "min_tokens": 4, "num_speculative_tokens": 2, "sampling_parameters": json.dumps({"logit_bias": {"5": -2.5}}),
    }  # fmt: skip
    answer = triton.generate("demo", text_input=PROMPTS[1], **fields)
    assert (answer.status, answer.text) == (200, wanted.text)
    as_json = {"max_tokens": 48, "temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.02, "seed": 7,
               "stop": ["\n\n", "qq"], "presence_penalty": 0.3, "frequency_penalty": 0.1, "repetition_penalty": 1.1,
               "min_tokens": 4, "num_speculative_tokens": 2, "logit_bias": {"5": -2.5}}  # fmt: skip
    assert triton.stream("demo", text_input=PROMPTS[1], sampling_parameters=json.dumps(as_json)).text == wanted.text


def test_messages_go_through_the_template(triton: TritonProcess, served_engine: Engine) -> None:
    messages = [{"role": "system", "content": "Sums"}, {"role": "user", "content": "def add("}]
    wanted = served_engine.chat(messages, SamplingParams(max_tokens=16))
    answer = triton.stream("demo", messages=json.dumps(messages), max_tokens=16)
    assert (answer.status, answer.text) == (200, wanted.text)


def test_text_has_the_requested_form(triton: TritonProcess) -> None:
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
    form = json.dumps({"structured_outputs": {"json": schema}})
    answer = triton.stream("demo", text_input=PROMPTS[0], max_tokens=40, sampling_parameters=form)
    assert answer.status == 200
    assert list(json.loads(answer.text)) == ["count"]


def test_tokens_and_logprobs_are_returned_on_request(triton: TritonProcess, served_engine: Engine) -> None:
    (wanted,) = served_engine.generate([[5, 6, 7]], SamplingParams(max_tokens=12, logprobs=0))
    fields = {"input_ids": [5, 6, 7], "max_tokens": 12, "return_token_ids": True, "return_log_probs": True}
    events = triton.stream("demo", **fields).events
    ids = [each for event in events for each in _listed(event["output_ids"])]
    likely = [each for event in events for each in _listed(event["output_log_probs"])]
    assert tuple(ids) == wanted.token_ids
    assert likely == pytest.approx([each.logprob for each in wanted.logprobs], abs=1e-5)
    assert events[-1]["cum_log_probs"] == pytest.approx(sum(likely), abs=1e-4)


def _listed(value: Any) -> list[Any]:
    """What ``generate`` makes of a tensor: of one value it shows no list."""
    return value if isinstance(value, list) else [value]


def test_grpc_stream_requests_run_concurrently(triton: TritonProcess, served_engine: Engine) -> None:
    outputs = served_engine.generate(PROMPTS, SamplingParams(max_tokens=24, temperature=0.9, seed=3))
    requests = [
        {
            "text_input": ("BYTES", prompt.encode()),
            "stream": ("BOOL", True),
            "max_tokens": ("INT32", 24),
            "temperature": ("FP32", 0.9),
            "random_seed": ("UINT64", 3),
        }
        for prompt in PROMPTS
    ]
    found = grpc_stream(triton, requests)
    for index, wanted in enumerate(outputs):
        pieces = found[str(index)]
        assert b"".join(piece["text_output"][0] for piece in pieces).decode() == wanted.text
        assert pieces[-1]["finish_reason"] == [wanted.finish_reason.encode()]


def test_four_concurrent_clients_get_their_single_results(triton: TritonProcess, served_engine: Engine) -> None:
    wanted = served_engine.generate(PROMPTS[:4], SamplingParams(max_tokens=32))
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            answers = list(pool.map(lambda p: triton.stream("demo", text_input=p, max_tokens=32), PROMPTS[:4]))
            assert [answer.text for answer in answers] == [output.text for output in wanted]


def test_a_closed_stream_frees_its_slot(triton: TritonProcess) -> None:
    before = triton.counted("request_success_total", "demo", finished_reason="abort")
    streams = [triton.events("demo", text_input=PROMPTS[0], max_tokens=MANY, ignore_eos=True) for _ in range(3)]
    for each in streams:
        assert next(each)["text_output"] is not None
    triton.wait_until(lambda: triton.counted("num_requests_running", "demo") == 3)
    for each in streams:
        each.close()  # type: ignore[attr-defined]
    triton.wait_until(lambda: triton.counted("request_success_total", "demo", finished_reason="abort") == before + 3)
    triton.wait_until(lambda: triton.counted("num_requests_running", "demo") == 0)
    assert triton.generate("demo", text_input="x", max_tokens=2).status == 200


def test_a_cancelled_grpc_stream_frees_its_slot(triton: TritonProcess) -> None:
    import tritonclient.grpc as grpc

    before = triton.counted("request_success_total", "demo", finished_reason="abort")
    arrived: SimpleQueue[Any] = SimpleQueue()
    text = grpc.InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[b"x = "]], np.object_))
    others = []
    for name, kind, value in (("stream", "BOOL", True), ("max_tokens", "INT32", MANY), ("ignore_eos", "BOOL", True)):
        others.append(grpc.InferInput(name, [1, 1], kind))
        others[-1].set_data_from_numpy(np.array([[value]], grpc.triton_to_np_dtype(kind)))
    with grpc.InferenceServerClient(f"127.0.0.1:{triton.grpc}") as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        client.async_stream_infer("demo", [text, *others])
        assert arrived.get(timeout=60)[1] is None
        client.stop_stream(cancel_requests=True)
    triton.wait_until(lambda: triton.counted("request_success_total", "demo", finished_reason="abort") == before + 1)
    triton.wait_until(lambda: triton.counted("num_requests_running", "demo") == 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text_input": "a", "temperature": -1}, "temperature must be a finite number of 0 or more, not -1.0"),
        ({"text_input": "a", "max_tokens": 0}, "max_tokens must be an integer of 1 or more, not 0"),
        (
            {"text_input": "a", "temprature": 1},
            "temprature is not an input of this model; fix: did you mean temperature?",
        ),
        ({"text_input": "a", "input_ids": [1]}, "the request has 2 prompts: text_input, input_ids"),
        ({"max_tokens": 3}, "the request has no prompt; fix: send exactly one of text_input, messages, input_ids"),
        ({"input_ids": [-1]}, "-1"),
        ({"text_input": ""}, "empty"),
        ({"text_input": "a", "num_speculative_tokens": 99}, "99"),
        ({"text_input": "a", "sampling_parameters": "{"}, "sampling_parameters is not valid JSON"),
        ({"text_input": "a", "sampling_parameters": '{"seeed": 1}'}, "did you mean seed?"),
        ({"text_input": "a", "top_k": 3, "sampling_parameters": '{"top_k": 1}'}, "top_k is given twice"),
        ({"text_input": "a", "sampling_parameters": '{"temperature": "hot"}'}, "temperature must be"),
        (
            {"messages": '[{"role": "assistant", "content": "a"}]'},
            "the last message, messages[0], is from the assistant",
        ),
        ({"messages": "hello"}, "messages is not valid JSON"),
        ({"text_input": "x " * 5000}, "tokens"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_bad_request_error_states_the_reason(triton: TritonProcess, fields: dict[str, Any], message: str) -> None:
    refused = triton.counted("request_refused_total", "demo")
    for call in (triton.generate, triton.stream):
        answer = call("demo", **fields)
        assert answer.status == 400, answer
        assert message in answer.events[0]["error"]
    triton.wait_until(lambda: triton.counted("request_refused_total", "demo") == refused + 2)


def test_batch_is_rejected_without_dropping_rows(triton: TritonProcess) -> None:
    import tritonclient.grpc as grpc
    from tritonclient.utils import InferenceServerException

    text = grpc.InferInput("text_input", [2, 1], "BYTES")
    text.set_data_from_numpy(np.array([[b"a"], [b"b"]], np.object_))
    arrived: SimpleQueue[Any] = SimpleQueue()
    with grpc.InferenceServerClient(f"127.0.0.1:{triton.grpc}") as client:
        client.start_stream(lambda result, error: arrived.put(error))
        client.async_stream_infer("demo", [text])
        error = arrived.get(timeout=60)
    assert isinstance(error, InferenceServerException)
    assert "batch-size must be <= 1" in str(error)


def test_full_queue_rejects_immediately(triton: TritonProcess) -> None:
    ended = _ended(triton)
    streams = [triton.events("demo", text_input="x", max_tokens=MANY, ignore_eos=True) for _ in range(11)]
    with ThreadPoolExecutor(11) as pool:
        held = [pool.submit(next, each) for each in streams]
        triton.wait_until(lambda: triton.counted("num_requests_waiting", "demo") == 8)
        answer = triton.generate("demo", text_input="x", max_tokens=1)
        assert answer.status == 400, "what generate of Triton 2.51 says of every error, whatever its code"
        assert "the queue is full: the engine already has 11 requests" in answer.events[0]["error"]
        for each in held:
            each.result(timeout=60)
    for each in streams:
        each.close()  # type: ignore[attr-defined]
    triton.wait_until(lambda: _load(triton) == (0, 0))
    triton.wait_until(lambda: _ended(triton) == ended + 11)


def _load(triton: TritonProcess) -> tuple[float, float]:
    """Requests that run, and that wait."""
    return triton.counted("num_requests_running", "demo"), triton.counted("num_requests_waiting", "demo")


def _ended(triton: TritonProcess) -> float:
    """Requests that ended in any way but a refusal."""
    return sum(
        triton.counted("request_success_total", "demo", finished_reason=reason)
        for reason in ("abort", "length", "stop")
    )


def test_generated_tokens_are_counted(triton: TritonProcess) -> None:
    names = {"prompt_tokens_total": "num_prompt_tokens", "generation_tokens_total": "num_output_tokens",
             "spec_decode_num_drafts_total": "num_draft_rounds",
             "spec_decode_num_draft_tokens_total": "num_draft_proposed",
             "spec_decode_num_accepted_tokens_total": "num_draft_accepted"}  # fmt: skip
    before = {name: _counted(triton, name) for name in names}
    said = triton.generate("demo", text_input=PROMPTS[2], max_tokens=20).events[0]
    for name, field in names.items():
        triton.wait_until(lambda name=name, field=field: _counted(triton, name) == before[name] + said[field])


def _counted(triton: TritonProcess, name: str, lossy: str = "false") -> float:
    return triton.counted(name, "demo", **({"lossy": lossy} if name.startswith("spec_decode") else {}))


def test_drafts_that_a_tolerance_let_through_are_named_lossy(triton: TritonProcess) -> None:
    name, asked = "spec_decode_num_draft_tokens_total", {"max_tokens": 20, "num_speculative_tokens": 3}
    before = _counted(triton, name, "true")
    exact = triton.generate("demo", text_input=PROMPTS[0], **asked).events[0]
    loose = triton.generate(
        "demo", text_input=PROMPTS[0], **asked, sampling_parameters='{"acceptance_tolerance": 1}'
    ).events[0]
    assert (exact["lossy"], loose["lossy"]) == (False, True)
    triton.wait_until(lambda: _counted(triton, name, "true") == before + loose["num_draft_proposed"])
