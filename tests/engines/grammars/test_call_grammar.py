"""Tool calls under a grammar: any output is a valid call with arguments of the schema."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from peagle.engines.answer_styles import DEFAULT, STYLES, AnswerForm
from peagle.engines.answer_styles.channels import CHANNEL, CONSTRAIN, MESSAGE, START
from peagle.engines.answer_styles.channels import END as CHANNEL_END
from peagle.engines.answer_styles.tagged_calls import CLOSE, OPEN, ToolCallReader
from peagle.engines.answer_styles.thoughts import TAGS
from peagle.engines.grammars.call_grammar import call_form, without_schemas
from peagle.engines.grammars.compiled import Grammars
from peagle.engines.requests.structured_outputs import StructuredOutputsParams
from peagle.plugins.errors import UsageError

pytest.importorskip("llguidance")

END = 256
CITY = {"type": "string", "maxLength": 3, "description": "where"}
SHAPES = {
    "city": {
        "type": "object",
        "properties": {
            "city": CITY,
            "days": {"type": "integer", "minimum": 0, "maximum": 99},
            "unit": {"enum": ["a::=b", 'é\n"\\']},
            "more": {"anyOf": [{"$ref": "#/$defs/flag"}, {"type": "null"}]},
        },
        "required": ["city", "more"],
        "$defs": {"flag": {"type": "boolean"}},
        "additionalProperties": False,
    },
    'say "so"': None,
}
DEEP: dict[str, Any] = {}
for _ in range(80):
    DEEP = {"properties": {"a": DEEP}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, **({"parameters": shape} if shape else {})}}
    for name, shape in SHAPES.items()
]


@pytest.fixture(scope="module", params=[(), (OPEN, CLOSE)], ids=["bytes", "tokens of their own"])
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Grammars]:
    """One of bytes, with an end, and perhaps with the words around a call."""
    known = Tokenizer(models.BPE({each: at for at, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    known.pre_tokenizer, known.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    known.add_special_tokens(["<end>", CHANNEL, MESSAGE, START, CHANNEL_END, CONSTRAIN])
    known.add_tokens([AddedToken(each, normalized=False) for each in request.param])
    folder = Path(tmp_path_factory.mktemp("calls"))
    known.save(str(folder / "tokenizer.json"))
    return known, Grammars((folder / "tokenizer.json").read_text, frozenset({END}), known.get_vocab_size())


def written(vocabulary: tuple[Tokenizer, Grammars], seed: int, form: StructuredOutputsParams) -> str:
    """A text that follows the form, otherwise at random."""
    known, grammars = vocabulary
    path, chance, ids = grammars.path(form, frozenset({END})), random.Random(seed), list[int]()
    assert path is not None
    while len(ids) < 3000:
        may = np.flatnonzero(path.allowed())
        token = END if END in may and chance.random() < 0.6 else int(chance.choice(may))
        if token == END:
            return str(known.decode(ids, skip_special_tokens=False))
        path.advance(token)
        assert path.failure is None
        ids.append(token)
    pytest.fail("it does not end")


@pytest.mark.parametrize("style", ["json", "tags"])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_trailing_text_is_parsed_as_calls(vocabulary: tuple[Tokenizer, Grammars], style: str, seed: int) -> None:
    text = written(vocabulary, seed, call_form(TOOLS, STYLES[style]))
    said, calls = ToolCallReader(TOOLS, are_certain=True).push(text, is_last=True)
    assert said == ""
    assert calls
    for call in calls:
        found = json.loads(call.arguments)
        if call.name != "city":
            assert (call.name, found) == ('say "so"', {})
            continue
        assert {"city", "more"} <= set(found) <= {"city", "days", "unit", "more"}
        assert isinstance(found["city"], str)
        assert len(found["city"]) <= 3
        assert found["more"] in (None, True, False)
        assert type(found.get("days", 0)) is int
        assert found.get("unit", "a::=b") in ("a::=b", 'é\n"\\')


@pytest.mark.parametrize("style", ["json", "tags", "llama", "channels"])
def test_arguments_keep_to_the_declared_keys(vocabulary: tuple[Tokenizer, Grammars], style: str) -> None:
    place = {"type": "object", "properties": {"x": {"type": "integer", "maximum": 9, "minimum": 0}}}
    tools = tool("f", properties={"place": place}, required=["place"])
    for seed in range(10):
        reader = STYLES[style].reader_of(tools, form=AnswerForm.CALLS)
        assert reader is not None
        text = written(vocabulary, seed, call_form(tools, STYLES[style], max_calls=1))
        _, (call,) = reader.push(text, is_last=True)
        found = json.loads(call.arguments)
        assert list(found) == ["place"]
        assert set(found["place"]) <= {"x"}
    assert '"additionalProperties": false' not in str(
        call_form(tools, STYLES[style], disable_additional_properties=False).grammar
    )


@pytest.mark.parametrize("style", ["json", "tags"])
def test_one_call_at_most_is_one(vocabulary: tuple[Tokenizer, Grammars], style: str) -> None:
    for seed in range(5):
        assert written(vocabulary, seed, call_form(TOOLS, STYLES[style], max_calls=1)).count(OPEN) == 1


@pytest.mark.parametrize("most", [1, None])
def test_text_is_free_until_it_begins_a_call(vocabulary: tuple[Tokenizer, Grammars], most: int | None) -> None:
    known, grammars = vocabulary
    form = call_form(TOOLS, DEFAULT, max_calls=most, must_call=False)
    grammars.require_possible(form)
    call = f'{OPEN}\n{{"name": "say \\"so\\"", "arguments": {{}}}}\n{CLOSE}'
    for text, goes_on in (
        ("I <tool> <tool_", True),
        (f"é {CLOSE} {{", True),
        (f"I look.\n{OPEN}\n", False),
        (f"I look.\n{call}", False),
        (call, False),
    ):
        path = grammars.path(form, frozenset({END}))
        assert path is not None
        for token in known.encode(text).ids:
            assert path.allowed()[token], text
            path.advance(token)
        may = {known.decode([int(token)]) for token in np.flatnonzero(path.allowed()) if token != END}
        assert goes_on == ({"a", "%"} <= may), text
        assert path.allowed()[END] == (goes_on or text.endswith(CLOSE)), text
        if text.endswith(call):
            assert may == (set() if most == 1 else {"\n"})


@pytest.mark.parametrize("is_opened", [True, False])
@pytest.mark.parametrize("in_thought", [True, False])
def test_no_call_begins_inside_reasoning(
    vocabulary: tuple[Tokenizer, Grammars], is_opened: bool, in_thought: bool
) -> None:
    """What the prompt opens counts, not what the template opens by default."""
    known, grammars = vocabulary
    style = replace(DEFAULT, thoughts=replace(TAGS[0], is_opened=is_opened))
    form = call_form(TOOLS, style, must_call=False)
    assert not form.is_from_start
    assert call_form(TOOLS, style).is_from_start
    for text, goes_on in (
        (f"\n<think>\nI could write {OPEN}\n", True),
        (f"<think>\n{OPEN}\n</think>\nI look.", True),
        (f"<think>\n{OPEN}\n</think>\nI look. {OPEN}\n", False),
        (f"So. {OPEN}\n", in_thought),
        (f"So. {OPEN}</think>\n{OPEN}\n", False),
    ):
        path = grammars.path(form.after_prompt(in_thought=in_thought), frozenset({END}))
        assert path is not None
        for token in known.encode(text).ids:
            if not path.allowed()[token]:
                assert not in_thought
                assert text.startswith("So. ")  # a call has begun
                break
            path.advance(token)
        assert path.allowed()[END] == goes_on, text


@pytest.mark.parametrize("style", ["json", "tags", "llama"])
@pytest.mark.parametrize("form", [{"json_object": True}, {"json": {"type": "object", "properties": {"b": {}}}}])
def test_json_may_replace_the_calls(vocabulary: tuple[Tokenizer, Grammars], style: str, form: dict[str, Any]) -> None:
    tools = tool("f", properties={"a": {"type": "integer"}}, required=["a"])
    otherwise = StructuredOutputsParams(**form, disable_any_whitespace=True)
    texts = [written(vocabulary, seed, call_form(tools, STYLES[style], otherwise=otherwise)) for seed in range(24)]
    kinds = set()
    for text in texts:
        reader = STYLES[style].reader_of(tools, form=AnswerForm.JSON_OR_CALLS)
        assert reader is not None
        said, calls = reader.push(text, is_last=True)
        kinds.add(bool(calls))
        assert {(call.name, *json.loads(call.arguments)) for call in calls} == ({("f", "a")} if calls else set())
        assert calls or isinstance(json.loads(said), dict)
    assert kinds == {True, False}


@pytest.mark.parametrize("style", ["llama", "channels"])
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_forms_of_llama_and_of_channels_are_one_call(
    vocabulary: tuple[Tokenizer, Grammars], style: str, seed: int
) -> None:
    tools = TOOLS if style == "llama" else TOOLS[:1]
    form = call_form(tools, STYLES[style])
    text = written(vocabulary, seed, form)
    reader = STYLES[style].reader_of(tools, form=AnswerForm.CALLS)
    assert reader is not None
    said, (call,) = reader.push(text, is_last=True)
    assert said == ""
    found = json.loads(call.arguments)
    assert call.name == "city" or (style, found) == ("llama", {})
    assert call.name != "city" or found["more"] in (None, True, False)


def test_tools_without_their_schemas_can_be_called(vocabulary: tuple[Tokenizer, Grammars]) -> None:
    tools = [*tool(type="array"), *tool("g", properties={"a": {"type": "strin"}})]
    with pytest.raises(UsageError):
        call_form(tools, DEFAULT)
    _, grammars = vocabulary
    grammars.require_possible(call_form(without_schemas(tools), DEFAULT, must_call=False))


def tool(name: str = "f", **parameters: Any) -> list[dict[str, Any]]:
    """One tool with these parameters."""
    return [{"type": "function", "function": {"name": name, "parameters": {"type": "object", **parameters}}}]


@pytest.mark.parametrize(
    ("tools", "style", "what"),
    [
        (tool() + tool(), "json", "tools[1] has the same name as an earlier tool: 'f'"),
        (
            [{"function": {"name": "f", "parameters": 3}}],
            "json",
            "tools[0].function.parameters is not an object schema",
        ),
        ([{"function": {"name": "f", "parameters": {"type": "array"}}}], "json", "tools[0].function.parameters is no"),
        (tool(properties=[]), "tags", "tools[0].function.parameters is not an object schema"),
        (tool(required=[3]), "tags", "tools[0].function.parameters is not an object schema"),
        (
            tool(properties={"a": {"type": "integer"}}, minProperties=1),
            "tags",
            "parameters.minProperties cannot be enforced",
        ),
        (tool(properties={"a": {"type": "string", "pattern": "b"}}), "tags", "properties.a.pattern cannot be enforced"),
        (tool(properties={"a": {"type": "string", "minLength": -1}}), "tags", "minLength"),
        (tool(properties={"a": {"type": "string", "enum": [1]}}), "tags", "properties.a.enum cannot be enforced"),
        (tool(properties={"a": {"enum": ["x</parameter>"]}}), "tags", "properties.a.enum cannot be enforced"),
        (tool(properties={"a>": {}}), "tags", "cannot be used in a tag"),
        (tool("f\n"), "tags", "cannot be used in a tag"),
        (tool("f g"), "channels", "tools[0].function.name cannot be used as a recipient"),
        (tool(properties={"a": {"type": "integer", "minimum": float("nan")}}), "tags", "is not valid JSON"),
        (tool(properties={"a": DEEP}), "json", "nested more than 120 levels deep"),
        (tool(properties={"a": {"enum": ["a" * 70_000]}}), "json", "exceed 65536 characters of grammar"),
    ],
)
def test_unenforceable_call_schema_is_rejected_by_path(tools: Any, style: str, what: str) -> None:
    with pytest.raises(UsageError) as refused:
        call_form(tools, STYLES[style])
    assert what in refused.value.what
    assert refused.value.fix
