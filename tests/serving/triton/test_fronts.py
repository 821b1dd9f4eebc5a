"""The front models: token ids from TensorRT-LLM's clients, and texts in one response."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from peagle.engines import Engine, SamplingParams
from tests.serving.triton.server_process import TritonProcess

pytestmark = pytest.mark.triton

PROMPT = (5, 6, 7, 8)
TYPES = {"input_lengths": "INT32", "request_output_len": "INT32", "streaming": "BOOL", "return_log_probs": "BOOL",
         "temperature": "FP32", "runtime_top_p": "FP32", "random_seed": "UINT64", "num_draft_tokens": "INT32",
         "beam_width": "INT32", "end_id": "INT32", "pad_id": "INT32", "max_tokens": "INT32", "ignore_eos": "BOOL",
         "stop": "BOOL"}  # fmt: skip


@pytest.fixture
def client(triton: TritonProcess) -> Iterator[Any]:
    """A client over gRPC."""
    import tritonclient.grpc as grpc

    with grpc.InferenceServerClient(f"127.0.0.1:{triton.grpc}") as client:
        yield client
        client.stop_stream(cancel_requests=True)


def tensor(name: str, array: np.ndarray, kind: str) -> Any:
    """An input of a request over gRPC."""
    import tritonclient.grpc as grpc

    found = grpc.InferInput(name, list(array.shape), kind)
    found.set_data_from_numpy(array)
    return found


def tokens(ids: tuple[int, ...] = PROMPT, **fields: Any) -> list[Any]:
    """The inputs of a request to the token model, as a client of TensorRT-LLM's sends them."""
    import tritonclient.grpc as grpc

    found = [tensor("input_ids", np.array([ids], np.int32), "INT32")]
    fields = {"input_lengths": len(ids), "request_output_len": 16, **fields}
    for name, value in fields.items():
        array = np.asarray(value, np.int32)[None] if isinstance(value, list) else None
        kind = TYPES.get(name, "INT32")
        found.append(tensor(name, np.array([[value]], grpc.triton_to_np_dtype(kind)) if array is None else array, kind))
    return found


def streamed(client: Any, inputs: list[Any], name: str = "") -> list[dict[str, Any]]:
    """The responses to one request, as arrays by output. Raises what the server answers."""
    arrived: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
    client.start_stream(lambda result, error: arrived.put((result, error)))
    found = []
    try:
        client.async_stream_infer("demo_tokens", inputs, request_id=name, enable_empty_final_response=True)
        while True:
            result, error = arrived.get(timeout=60)
            if error is not None:
                raise error
            response = result.get_response()
            outputs = {each.name: result.as_numpy(each.name) for each in response.outputs}
            if outputs:
                found.append(outputs)
            if response.parameters["triton_final_response"].bool_param:
                return found
    finally:
        client.stop_stream()


def test_tokens_match_the_tensorrt_llm_protocol(client: Any, served_engine: Engine) -> None:
    params = SamplingParams(max_tokens=24, temperature=0.8, top_p=0.9, seed=11, logprobs=0)
    (wanted,) = served_engine.generate([PROMPT], params, num_speculative_tokens=3)
    fields = {"request_output_len": 24, "temperature": 0.8, "runtime_top_p": 0.9, "random_seed": 11,
              "return_log_probs": True, "beam_width": 1, "num_draft_tokens": 3}  # fmt: skip
    pieces = streamed(client, tokens(streaming=True, **fields))
    assert len(pieces) > 3
    assert all(piece["output_ids"].shape == (1, 1, piece["sequence_length"][0, 0]) for piece in pieces)
    assert tuple(np.concatenate([piece["output_ids"][0, 0] for piece in pieces])) == wanted.token_ids
    likely = np.concatenate([piece["output_log_probs"][0, 0] for piece in pieces])
    assert likely == pytest.approx([each.logprob for each in wanted.logprobs], abs=1e-5)
    assert pieces[-1]["finish_reason"].tolist() == [[wanted.finish_reason.encode()]]
    assert pieces[-1]["num_draft_accepted"].tolist() == [[wanted.acceptance.accepted]]
    (whole,) = streamed(client, tokens(streaming=False, **fields))
    assert tuple(whole["output_ids"][0, 0]) == wanted.token_ids
    assert whole["cum_log_probs"][0, 0] == pytest.approx(sum(likely), abs=1e-4)


def test_end_ids_and_banned_words_apply(client: Any, served_engine: Engine) -> None:
    (plain,) = served_engine.generate([PROMPT], SamplingParams(max_tokens=16))
    end, ban = plain.token_ids[5], plain.token_ids[2]
    (ended,) = streamed(client, tokens(end_id=end))
    first = plain.token_ids.index(end)
    assert tuple(ended["output_ids"][0, 0]) == plain.token_ids[: first + 1]
    assert ended["finish_reason"].tolist() == [[b"stop"]]
    (listed,) = streamed(client, tokens(stop_words_list=[[end, 0], [1, -1]], pad_id=0))
    assert listed["output_ids"].tolist() == ended["output_ids"].tolist()
    (wanted,) = served_engine.generate([PROMPT], SamplingParams(max_tokens=16, bad_token_ids=[ban]))
    (banned,) = streamed(client, tokens(bad_words_list=[[ban], [1]]))
    assert tuple(banned["output_ids"][0, 0]) == wanted.token_ids
    assert ban not in wanted.token_ids


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"beam_width": 2}, "beam_width is not 1"),
        ({"input_lengths": 9}, "input_lengths is 9, but input_ids has 4"),
        ({"request_output_len": 0}, "max_tokens must be an integer of 1 or more"),
        ({"stop_words_list": [[5, 6], [2, -1]]}, "words of several tokens"),
        ({"stop_words_list": [[5], [7]]}, "words of several tokens"),
        ({"num_draft_tokens": 99}, "99"),
        ({"stop": True}, "no running request has the id ''"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_unsupported_token_model_options_are_rejected(client: Any, fields: dict[str, Any], message: str) -> None:
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException) as caught:
        streamed(client, tokens(**fields))
    assert message in str(caught.value)


def test_a_cancel_reaches_the_engine_through_the_model_in_front(triton: TritonProcess, client: Any) -> None:
    before = triton.counted("request_success_total", "demo", finished_reason="abort")
    arrived: SimpleQueue[Any] = SimpleQueue()
    client.start_stream(lambda result, error: arrived.put(error))
    client.async_stream_infer("demo_tokens", tokens(request_output_len=480, streaming=True))
    assert arrived.get(timeout=60) is None
    client.stop_stream(cancel_requests=True)
    triton.wait_until(lambda: triton.counted("request_success_total", "demo", finished_reason="abort") == before + 1)


def test_a_request_is_stopped_by_its_id(triton: TritonProcess, client: Any) -> None:
    before = triton.counted("request_success_total", "demo", finished_reason="abort")
    arrived: SimpleQueue[str] = SimpleQueue()

    def arrive(result: Any, error: Any) -> None:
        if error or result.get_response().outputs:
            arrived.put(str(error) if error else result.get_response().id)

    client.start_stream(arrive)
    for number in range(8):  # three run, and the last waits behind four others
        client.async_stream_infer("demo_tokens", tokens(request_output_len=400), request_id=f"{number}")
    client.async_stream_infer("demo_tokens", tokens(stop=True), request_id="7")
    assert sorted(arrived.get(timeout=60) for _ in range(8)) == [*map(str, range(7)), "the request was canceled"]
    triton.wait_until(lambda: triton.counted("request_success_total", "demo", finished_reason="abort") == before + 1)


def whole_inputs(prompts: list[str], **fields: Any) -> list[Any]:
    """The inputs of a request to the model that answers at once, with a row for each prompt."""
    import tritonclient.grpc as grpc

    found = [tensor("text_input", np.array([[each.encode()] for each in prompts], np.object_), "BYTES")]
    for name, value in fields.items():
        array = np.full((len(prompts), 1), value, grpc.triton_to_np_dtype(TYPES[name]))
        found.append(tensor(name, array, TYPES[name]))
    return found


def test_every_row_of_a_batch_is_answered(client: Any, served_engine: Engine) -> None:
    prompts = ["def f(", "x = [", "import", "# a", "class A"]
    wanted = served_engine.generate(prompts, SamplingParams(max_tokens=12))
    result = client.infer("demo_whole", whole_inputs(prompts, max_tokens=12))
    texts = [each.decode() for each in result.as_numpy("text_output").reshape(-1)]
    assert texts == [output.text for output in wanted]
    counts = result.as_numpy("num_output_tokens").reshape(-1).tolist()
    assert counts == [len(output.token_ids) for output in wanted]


def test_plain_inference_over_http_is_answered(triton: TritonProcess, served_engine: Engine) -> None:
    import tritonclient.http as http

    (wanted,) = served_engine.generate(["def f("], SamplingParams(max_tokens=12))
    text, most = http.InferInput("text_input", [1, 1], "BYTES"), http.InferInput("max_tokens", [1, 1], "INT32")
    text.set_data_from_numpy(np.array([[b"def f("]], np.object_))
    most.set_data_from_numpy(np.array([[12]], np.int32))
    with http.InferenceServerClient(f"127.0.0.1:{triton.http}") as client:
        found = client.infer("demo_whole", [text, most]).as_numpy("text_output")
    assert found.reshape(-1)[0].decode() == wanted.text
    assert triton.generate("demo_whole", text_input="def f(", max_tokens=12).text == wanted.text


def test_rejected_row_is_named(triton: TritonProcess, client: Any) -> None:
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException) as caught:
        client.infer("demo_whole", whole_inputs(["a", "", "b"], max_tokens=480, ignore_eos=True))
    assert "row 1: " in caught.value.message()
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    triton.wait_until(lambda: triton.counted("num_requests_running", "demo") == 0)
    refused = triton.generate("demo_whole", text_input="a", stream=True)
    assert (refused.status, refused.events[0]["error"][:16]) == (400, "stream is not an")


def test_many_clients_of_all_models_get_the_right_answers(triton: TritonProcess, served_engine: Engine) -> None:
    prompts = ["def f(", "x = [", "import", "# a"]
    wanted = [each.text for each in served_engine.generate(prompts, SamplingParams(max_tokens=8))]

    def ask(number: int) -> tuple[str, str]:
        prompt = prompts[number % 4]
        call = triton.stream if number % 2 else triton.generate
        model = "demo" if number % 2 else "demo_whole"
        return call(model, text_input=prompt, max_tokens=8).text, wanted[number % 4]

    with ThreadPoolExecutor(8) as pool:
        for found, text in pool.map(ask, range(160)):
            assert found == text
