"""Official clients complete a run against ``serve``, with the demo pair and SmolLM2.

They are installed from the package index that pip knows into environments of their own (3 GB), which later runs reuse.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from threading import Thread

import pytest

from peagle.engines.serving.anthropic.bodies import IGNORED, NEUTRAL, CountBody, MessagesBody
from peagle.engines.serving.server import Server
from tests.fixtures.servers import serving

pytestmark = pytest.mark.slow

# Environments and what is in them; docs/evidence.md names the same versions. torch is the project's own version, since
# another one may bring gigabytes of CUDA.
ENVIRONMENTS = {
    "guidellm": ["guidellm==0.8.1"],
    "aiperf": ["aiperf==0.13.0"],
    "anthropic": ["anthropic==2.14.0"],
    "libraries": ["instructor==1.17.0", "litellm==1.106.2", "langchain-openai==1.7.3", "pydantic-ai==2.31.1"],
}
_LONGEST = 1800.0  # seconds; a limit for a busy machine, of which an idle one takes a fiftieth
NOWHERE = "http://127.0.0.1:9"
# At run time nothing but the server can be reached.
ISOLATED = {
    "HTTP_PROXY": NOWHERE,
    "HTTPS_PROXY": NOWHERE,
    "NO_PROXY": "127.0.0.1,localhost",
    "OPENAI_API_KEY": "none",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "DO_NOT_TRACK": "1",
}

_BEGIN = """
import sys
from typing import Literal
from pydantic import BaseModel

url, question = sys.argv[1] + "/v1", [{"role": "user", "content": "def count_vowels(text):\\n"}]

class Where(BaseModel):
    city: Literal["Rome", "Oslo"]

class Trip(BaseModel):
    place: Where
    by_train: bool = True
"""
PROGRAMS = {
    "instructor with JSON_SCHEMA": """
import instructor
from openai import OpenAI

client = instructor.from_openai(OpenAI(base_url=url), mode=instructor.Mode.JSON_SCHEMA)
for seed in range(3):
    found = client.create(
        model="demo", messages=question, response_model=Trip, max_tokens=80, temperature=1, seed=seed, max_retries=1
    )
    assert isinstance(found, Trip), found
""",
    # The schema is in the prompt, for models that can read, and the form is any JSON object.
    "instructor with JSON": """
import instructor
from instructor.core import IncompleteOutputException
from openai import OpenAI

class Anything(BaseModel):
    pass

client, found = instructor.from_openai(OpenAI(base_url=url), mode=instructor.Mode.JSON), []
for seed in range(8):
    try:
        found.append(client.create(
            model="demo", messages=question, response_model=Anything, max_tokens=80, temperature=1, seed=seed,
            max_retries=1,
        ))
    except IncompleteOutputException:
        pass  # a model of random words may write an object that does not end
assert found and all(isinstance(each, Anything) for each in found), found
""",
    "litellm": """
import litellm

for model in ("openai/demo", "hosted_vllm/demo"):
    asked = dict(model=model, api_base=url, api_key="none", messages=question, max_tokens=12, temperature=0)
    whole = litellm.completion(**asked)
    pieces = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content != "", (text, whole)
    assert whole.usage.completion_tokens == 12, whole.usage
found = litellm.completion(**asked | {"max_tokens": 80}, response_format=Trip)
Trip.model_validate_json(found.choices[0].message.content)
""",
    "langchain-openai": """
from langchain_openai import ChatOpenAI, OpenAI

model = ChatOpenAI(model="demo", base_url=url, api_key="none", max_tokens=80, temperature=0)
whole = model.invoke("def f(x):")
assert "".join(piece.content for piece in model.stream("def f(x):")) == whole.content != "", whole
assert whole.usage_metadata["output_tokens"] > 0, whole
assert isinstance(model.with_structured_output(Trip).invoke("a trip"), Trip)
assert OpenAI(model="demo", base_url=url, api_key="none", max_tokens=8).invoke("def f")
""",
    "pydantic-ai": """
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel("demo", provider=OpenAIProvider(base_url=url, api_key="none"))
settings = {"max_tokens": 80, "temperature": 0}
done = Agent(model, model_settings=settings).run_sync("def f(x):")
assert done.output and done.usage.output_tokens > 0, done
assert isinstance(Agent(model, output_type=NativeOutput(Trip), model_settings=settings).run_sync("a trip").output, Trip)

async def stream():
    async with Agent(model, model_settings=settings).run_stream("def f(x):") as answer:
        return [piece async for piece in answer.stream_text(delta=True)]

import asyncio
assert "".join(asyncio.run(stream())) == done.output
""",
}


OPENAI = """
import json
import sys

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
question = [{"role": "user", "content": "def count_vowels(text):\\n"}]
schema = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"], "maxProperties": 1}

def streamed(**asked):
    with client.chat.completions.stream(**asked) as stream:
        kinds = {each.type for each in stream}
        return stream.get_final_completion().choices[0], kinds

def calls(choice):
    assert choice.finish_reason == "tool_calls" and not choice.message.content, choice
    return [(each.function.name, each.function.arguments) for each in choice.message.tool_calls]

asked = dict(model="demo", messages=question, max_tokens=24, temperature=0.9, seed=5)
(whole,) = client.chat.completions.create(**asked).choices
pieces = list(client.chat.completions.create(**asked, stream=True))
text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
assert text == whole.message.content != "" and len(pieces) > 4 and whole.finish_reason == "length", (whole, text)

asked |= dict(tools=[{"type": "function", "function": {"name": "weather", "parameters": schema}}],
              tool_choice="required", parallel_tool_calls=False, max_tokens=200)
whole, (final, kinds) = client.chat.completions.create(**asked).choices[0], streamed(**asked)
assert calls(whole) == calls(final) and "tool_calls.function.arguments.delta" in kinds, (whole, final, kinds)
(call,) = whole.message.tool_calls
assert call.function.name == "weather" and json.loads(call.function.arguments)["unit"] in ("C", "F"), call
turns = [*question, whole.message, {"role": "tool", "tool_call_id": call.id, "content": "7"}]
told = client.chat.completions.create(**asked | dict(messages=turns, tool_choice="auto", max_tokens=12))
assert told.choices[0].message.content or told.choices[0].message.tool_calls, told

tools = [{"type": "function", "name": "weather", "parameters": schema, "strict": False}]
asked = dict(model="demo", input=question, tools=tools, tool_choice="required", parallel_tool_calls=False,
             max_output_tokens=200, temperature=0.9, extra_body={"seed": 5})
whole = client.responses.create(**asked)
with client.responses.stream(**asked) as stream:
    kinds = {each.type for each in stream}
    final = stream.get_final_response()
(call,), (again,) = whole.output, final.output
assert (call.name, call.arguments) == (again.name, again.arguments), (whole, final)
assert "response.function_call_arguments.delta" in kinds and json.loads(call.arguments)["unit"] in ("C", "F"), kinds
result = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
told = client.responses.create(
    model="demo", previous_response_id=whole.id, input=[result], max_output_tokens=16, tools=tools, tool_choice="none"
)
assert told.output_text and told.previous_response_id == whole.id, told
"""

ANTHROPIC = """
import json
import sys

import anthropic
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta
from pydantic import BaseModel

url, known, counted = sys.argv[1], *map(set, json.loads(sys.argv[2]))
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
question = [{"role": "user", "content": "def count_vowels(text):\\n"}]
asked = dict(model="demo", max_tokens=12, messages=question, extra_body={"temperature": 0.9, "seed": 5})

def streamed(**asked):
    with client.messages.stream(**asked) as stream:
        kinds = [each.type for each in stream]
        return stream.get_final_message(), kinds

def read(told):
    return told.usage.input_tokens + told.usage.cache_read_input_tokens

def same(one, other):
    spent = {"speculation", "input_tokens", "cache_read_input_tokens"}
    dump = lambda each: each.model_dump(exclude={"id": True, "usage": spent, "content": {"__all__": {"id"}}})
    assert (dump(one), read(one)) == (dump(other), read(other)), (one, other)

whole = client.messages.create(**asked, system=[{"type": "text", "text": "Be brief.\\n"}])
same(whole, streamed(**asked, system="Be brief.\\n")[0])
assert whole.content[0].type == "text" and whole.usage.output_tokens == 12 and whole.stop_reason == "max_tokens"
count = client.messages.count_tokens(model="demo", messages=question, system="Be brief.\\n")
assert count.input_tokens == read(whole), count

tools = [{"name": "weather", "input_schema": {
    "type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"], "maxProperties": 1}}]
asked |= dict(tools=tools, tool_choice={"type": "any", "disable_parallel_tool_use": True}, max_tokens=200)
whole, (final, kinds) = client.messages.create(**asked), streamed(**asked)
same(whole, final)
assert "input_json" in kinds and whole.stop_reason == "tool_use", (whole, kinds)
(call,) = whole.content
assert call.type == "tool_use" and call.input["unit"] in ("C", "F"), call
result = {"type": "tool_result", "tool_use_id": call.id, "content": "7"}
turns = [*question, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
told = client.beta.messages.create(model="demo", max_tokens=12, messages=turns, tools=tools, betas=["of-any-name"])
assert told.role == "assistant", told

class Trip(BaseModel):
    by_train: bool

parsed = client.messages.parse(model="demo", max_tokens=60, messages=question, output_format=Trip)
assert isinstance(parsed.parsed_output, Trip), parsed

begun = [*question, {"role": "assistant", "content": "    total"}]
assert client.messages.create(model="demo", max_tokens=4, messages=begun).content[0].type == "text"
(listed,) = client.models.list()
assert (listed.id, client.models.retrieve("demo")) == ("demo", listed), listed

for model, kind in (("other", anthropic.NotFoundError), ("demo", anthropic.BadRequestError)):
    try:
        client.messages.create(model=model, max_tokens=0, messages=question)
    except kind as error:
        assert error.body["type"] == "error", error.body
    else:
        raise AssertionError(kind)

names = {
    name for each in (message_create_params, beta)
    for kind in (each.MessageCreateParamsBase, each.MessageCreateParamsNonStreaming) for name in kind.__annotations__
}
assert names <= known, names - known
names = set(message_count_tokens_params.MessageCountTokensParams.__annotations__)
assert names <= counted, names - counted
"""


@pytest.fixture(scope="session")
def environment(pytestconfig: pytest.Config) -> Callable[[str], Path]:
    """Return the folder of programs of one of ``ENVIRONMENTS``, which stays in pytest's cache for later runs."""

    def programs(name: str) -> Path:
        from peagle.compiler.store.locks import locked

        assert pytestconfig.cache is not None
        folder = pytestconfig.cache.mkdir("official-clients") / name
        wanted = "\n".join([sys.version, *ENVIRONMENTS[name]])
        lock, stamp = folder.with_suffix(".lock"), folder / "made-of"
        lock.touch()
        with locked(lock):
            if not stamp.is_file() or stamp.read_text() != wanted:
                _check(_run([sys.executable, "-m", "venv", "--clear", str(folder)], os.environ))
                limits = folder / "constraints.txt"
                limits.write_text(f"torch=={version('torch')}\n")
                pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
                installed = _run([*pip, "--constraint", str(limits), *ENVIRONMENTS[name]], os.environ)
                if "No matching distribution" in installed.stdout or "ConnectionError" in installed.stdout:
                    pytest.skip(f"there is no package index: {installed.stdout[-300:]}")
                _check(installed)
                stamp.write_text(wanted)
        return folder / "bin"

    return programs


# Set up before ``url``, so that without a package index no server is started for nothing.
@pytest.fixture(scope="session")
def libraries(environment: Callable[[str], Path]) -> Path:
    """The folder of programs of the libraries."""
    return environment("libraries")


@pytest.fixture(scope="session")
def anthropic_client(environment: Callable[[str], Path]) -> Path:
    """The folder of programs of Anthropic's client."""
    return environment("anthropic")


@pytest.fixture(scope="session")
def guidellm(environment: Callable[[str], Path]) -> Path:
    """The folder of programs of guidellm."""
    return environment("guidellm")


@pytest.fixture(scope="session")
def aiperf(environment: Callable[[str], Path]) -> Path:
    """The folder of programs of AIPerf."""
    return environment("aiperf")


@pytest.fixture(params=["talking_engine", "smollm2_engine"], ids=["demo pair", "SmolLM2"])
def folder(request: pytest.FixtureRequest) -> Path:
    """The engine of the server; its tokenizer is the clients'."""
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    """The address of a server that has answered every request, and at least one, when the test is through."""
    lines: list[str] = []
    with serving(folder, "--per-request-spec-decode-metrics", "summary") as (process, url):
        assert process.stderr is not None
        reader = Thread(target=lines.extend, args=[process.stderr])  # a full pipe would stop the server
        reader.start()
        try:
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(_LONGEST)
            reader.join()
    logged = [json.loads(line) for line in lines if line.startswith("{")]
    answers = [line for line in logged if line["event"] == "request" and line["method"] == "POST"]
    assert answers
    assert [line for line in answers if line["status"] != 200 or "error" in line] == []


@pytest.fixture(params=["calling_server", "smollm2_server"], ids=["demo pair", "SmolLM2"])
def tolerant_url(request: pytest.FixtureRequest) -> str:
    """The address of a server that may refuse requests. The demo pair's template knows tools; SmolLM2's does not."""
    found: Server = request.getfixturevalue(request.param)
    return found.url


def _run(command: list[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; both of its streams are ``stdout``."""
    return subprocess.run(
        command, env=dict(variables), text=True, timeout=_LONGEST, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def _check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, f"{' '.join(done.args)[:300]}\n{done.stdout[-6000:]}"


def _isolated(home: Path) -> dict[str, str]:
    return {**os.environ, **ISOLATED, "HOME": str(home), "HF_HOME": str(home / "hub")}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_library_has_its_answers(libraries: Path, url: str, tmp_path: Path, name: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(_BEGIN + PROGRAMS[name])
    _check(_run([str(libraries / "python"), str(program), url], _isolated(tmp_path)))


def test_openai_s_client_has_its_chats_and_responses(tolerant_url: str, tmp_path: Path) -> None:
    """Whole and streamed, over tool loops."""
    program = tmp_path / "program.py"
    program.write_text(OPENAI)
    _check(_run([sys.executable, str(program), tolerant_url], _isolated(tmp_path)))


def test_anthropic_s_client_has_its_messages(anthropic_client: Path, tolerant_url: str, tmp_path: Path) -> None:
    """Whole and streamed, with tools and types; and every field that it can send is known."""
    program = tmp_path / "program.py"
    program.write_text(ANTHROPIC)
    known = [[*kind.__struct_fields__, *IGNORED, *NEUTRAL] for kind in (MessagesBody, CountBody)]
    python = str(anthropic_client / "python")
    _check(_run([python, str(program), tolerant_url, json.dumps(known)], _isolated(tmp_path)))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_guidellm_measures(guidellm: Path, url: str, folder: Path, tmp_path: Path, path: str) -> None:
    report = tmp_path / "report.json"
    command = [
        str(guidellm / "guidellm"), "run", "--disable-console-interactive",
        "--backend", f"kind=openai_http,target={url},request_format={path}",
        "--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=4",
        "--tokenizer", f"kind=hf_auto,model={folder}",
        "--data", "kind=synthetic_text,prompt_tokens=20,output_tokens=16", "--output", f"kind=json,path={report}",
    ]  # fmt: skip
    _check(_run(command, {**_isolated(tmp_path), "HF_HUB_OFFLINE": "1"}))
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    requests = benchmark["scheduler_metrics"]["requests_made"]
    assert (requests["successful"], requests["errored"]) == (4, 0)


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_aiperf_measures(aiperf: Path, url: str, folder: Path, tmp_path: Path, kind: str) -> None:
    command = [
        str(aiperf / "aiperf"), "profile", "-m", "demo", "--url", url, "--endpoint-type", kind,
        "--streaming", "--tokenizer", str(folder), "--synthetic-input-tokens-mean", "20",
        "--output-tokens-mean", "16", "--extra-inputs", "ignore_eos:true", "--extra-inputs", "num_speculative_tokens:3",
        "--concurrency", "2", "--request-count", "6",
        "--no-gpu-telemetry", "--ui", "none", "--artifact-dir", str(tmp_path / "out"),
    ]  # fmt: skip
    _check(_run(command, _isolated(tmp_path)))
    found = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert found["request_count"]["avg"] == 6
    assert found.get("error_request_count", {"avg": 0})["avg"] == 0
    assert found["spec_decode_acceptance_length"]["avg"] >= 1
    assert found["spec_decode_steps"]["avg"] > 0


SPEED_BENCH = {
    "coding": ["Write a Python function that adds two numbers.", "Reverse a string in C."],
    "writing": ["Write a letter to a friend.", "Describe a lake in autumn."],
}


@pytest.mark.parametrize("folder", ["smollm2_engine"], indirect=True)
def test_aiperf_reports_speed_bench(aiperf: Path, url: str, folder: Path, tmp_path: Path) -> None:
    """With questions of our own in the form of SPEED-Bench's file.

    The report reads the server's metrics three times a second, so a run has to take seconds, as with SmolLM2.
    """
    data, runs = tmp_path / "qualitative.jsonl", tmp_path / "runs"
    with data.open("w") as file:
        for at, (kind, text) in enumerate((kind, text) for kind, texts in SPEED_BENCH.items() for text in texts):
            messages = [{"role": "user", "content": text}]
            file.write(json.dumps({"question_id": f"{at:032}", "category": kind, "messages": messages}) + "\n")
    for kind in SPEED_BENCH:
        command = [
            str(aiperf / "aiperf"), "profile", "-m", "demo", "--url", url, "--endpoint-type", "chat", "--streaming",
            "--tokenizer", str(folder), "--input-file", str(data), "--custom-dataset-type", f"speed_bench_{kind}",
            "--extra-inputs", "max_tokens:100", "--extra-inputs", "num_speculative_tokens:3", "--concurrency", "1",
            "--request-count", "8", "--server-metrics", f"{url}/metrics", "--server-metrics-formats", "json",
            "--no-gpu-telemetry", "--ui", "none", "--artifact-dir", str(runs / kind),
        ]  # fmt: skip
        _check(_run(command, _isolated(tmp_path)))
    report = tmp_path / "report.csv"
    command = [str(aiperf / "aiperf"), "speed-bench-report", str(runs), "--output", str(report), "--format", "csv"]
    _check(_run(command, _isolated(tmp_path)))
    (row,) = csv.DictReader(report.read_text().splitlines())
    assert all(float(row[kind]) >= 1 for kind in SPEED_BENCH), row
