"""Chat answers from a real engine: input tokens, the end of the turn, and streaming."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.folder.manifest import Manifest
from peagle.engines.folder.records import FileEntry
from peagle.plugins.errors import EnvironmentProblem, UsageError

CODE = [{"role": "system", "content": "Code."}, {"role": "user", "content": "def main("}]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}# {{ m.role }}\n{{ m.content }}<|mask|>\n{% endfor %}"
    "{% if add_generation_prompt %}# assistant\n{% endif %}"
)
PARAMS = SamplingParams(max_tokens=12)


@pytest.fixture(scope="module")
def chat_engine(demo_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The demo engine with another template, whose answers end with ``<|mask|>``."""
    folder = Path(shutil.copytree(demo_engine, tmp_path_factory.mktemp("chat") / "engine"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return Engine.load(folder, threads=1)


def test_a_conversation_is_answered_as_its_rendered_text(chat_engine: Engine) -> None:
    text, ids = chat_engine.chat_prompt(CODE)
    assert text == "<|endoftext|># system\nCode.<|mask|>\n# user\ndef main(<|mask|>\n# assistant\n"
    assert ids.count(ids[0]) == 1  # the BOS token is not added twice
    answer = chat_engine.chat(CODE, PARAMS)
    assert answer.prompt_token_ids == tuple(ids)
    assert answer.token_ids == chat_engine.generate([ids], PARAMS)[0].token_ids
    assert chat_engine.chat(CODE, PARAMS, num_speculative_tokens=0).token_ids == answer.token_ids


def test_content_can_spell_special_tokens(chat_engine: Engine) -> None:
    _, ids = chat_engine.chat_prompt([{"role": "user", "content": "<|mask|>"}])
    _, other = chat_engine.chat_prompt([{"role": "user", "content": ""}])
    assert len(ids) == len(other) + 1


def test_answer_ends_at_the_template_end(chat_engine: Engine, engine: Path) -> None:
    """A word of the answer becomes an added token, with which the template ends answers."""
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    whole, (prompt, _) = chat_engine.chat(CODE, params), chat_engine.chat_prompt(CODE)
    words = [chat_engine.tokenizer.decode([each]) for each in whole.token_ids]
    at, end = next((at, word) for at, word in enumerate(words) if word.isalnum() and word not in prompt)
    content = json.loads((engine / "tokenizer.json").read_text())
    content["added_tokens"].append({**content["added_tokens"][-1], "id": whole.token_ids[at], "content": end})
    (engine / "tokenizer.json").write_text(json.dumps(content))
    manifest = Manifest.read(engine)
    files = {**manifest.files, "tokenizer.json": FileEntry.of(engine / "tokenizer.json")}
    replace(manifest, files=files).write(engine)
    template = TEMPLATE.replace("<|mask|>", f"{{{{ '{end}' if m.role == 'assistant' else '<|mask|>' }}}}")
    (engine / "chat_template.jinja").write_text(template)
    loaded = Engine.load(engine, threads=1)
    answer = loaded.chat(CODE, SamplingParams(max_tokens=40))
    assert (answer.token_ids, answer.finish_reason) == (whole.token_ids[: at + 1], "stop")
    assert end not in answer.text
    assert loaded.chat(CODE, params).finish_reason == "length"
    (text,) = loaded.generate([answer.prompt_token_ids], SamplingParams(max_tokens=at + 2))
    assert text.token_ids == whole.token_ids[: at + 2]  # it is a chat's end, not a text's


def test_a_stream_gives_the_answer_in_pieces(chat_engine: Engine) -> None:
    whole, stream = chat_engine.chat(CODE, PARAMS), chat_engine.stream_chat(CODE, PARAMS)
    pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == whole.text
    assert stream.result.token_ids == whole.token_ids


def test_drafts_are_marked(chat_engine: Engine) -> None:
    k = chat_engine.num_speculative_tokens
    stream = chat_engine.stream_chat(CODE, SamplingParams(max_tokens=40), num_speculative_tokens=k)
    pieces = list(stream)
    result = stream.result
    past_the_end = result.acceptance.accepted - sum(result.drafted)  # in the last round
    assert 0 <= past_the_end <= k
    assert any(result.drafted)
    assert tuple(flag for piece in pieces for flag in piece.drafted) == result.drafted
    assert all("".join(text for text, _ in piece.runs) == piece.text for piece in pieces)
    plain = chat_engine.chat(CODE, PARAMS, num_speculative_tokens=0)
    assert plain.drafted == (False,) * len(plain.token_ids)


def test_aborted_stream_keeps_its_text(chat_engine: Engine) -> None:
    stream = chat_engine.stream_chat(CODE, SamplingParams(max_tokens=500, ignore_eos=True))
    taken = []
    for piece in stream:
        taken.append(piece.text)
        if len(taken) == 3:
            stream.abort()
    assert stream.result.finish_reason == "abort"
    assert stream.result.text == "".join(taken)
    assert len(taken) >= 3
    assert 3 <= len(stream.result.token_ids) < 500
    assert len(chat_engine.chat(CODE, PARAMS).token_ids) == 12  # and the next one is not affected


def test_stream_can_be_aborted_before_prefill(chat_engine: Engine) -> None:
    first = chat_engine.stream_chat(CODE, SamplingParams(max_tokens=300, ignore_eos=True))
    stream = chat_engine.stream_chat(CODE, PARAMS)  # there is one slot
    stream.abort()
    assert [piece.finish_reason for piece in stream] == ["abort"]
    assert (stream.result.text, stream.result.token_ids) == ("", ())
    first.abort()


def test_without_a_template_chat_is_refused(demo_engine: Path) -> None:
    engine = Engine.load(demo_engine, threads=1)
    with pytest.raises(UsageError, match="has no chat template"):
        engine.chat(CODE)


def test_too_long_conversation_is_rejected(chat_engine: Engine) -> None:
    with pytest.raises(UsageError, match=r"the conversation has \d+ tokens, but this model's maximum"):
        chat_engine.chat([{"role": "user", "content": "x = 1\n" * chat_engine.max_seq_len}])


def test_messages_and_templates_are_checked(chat_engine: Engine, engine: Path) -> None:
    with pytest.raises(UsageError, match="messages is empty"):
        chat_engine.chat([])
    (engine / "chat_template.jinja").write_text("{% if")
    with pytest.raises(EnvironmentProblem, match="not valid Jinja"):
        Engine.load(engine, threads=1).chat(CODE)


def test_engine_keeps_its_template_when_its_folder_is_replaced(demo_engine: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(demo_engine, tmp_path / "engine"))
    template = folder / "chat_template.jinja"
    template.write_text(TEMPLATE)
    with Engine.load(folder, threads=1) as engine:
        template.write_text("{{ messages[0].content }} of another")
        assert engine.chat_prompt(CODE)[0].startswith("<|endoftext|># system\n")


def test_a_conversation_continues_its_last_message(chat_engine: Engine) -> None:
    begun = [*CODE, {"role": "assistant", "content": "argc, "}]
    text, ids = chat_engine.chat_prompt(begun, continue_final_message=True)
    assert text.endswith("def main(<|mask|>\n# assistant\nargc, ")
    assert chat_engine.chat(begun, PARAMS, continue_final_message=True).prompt_token_ids == tuple(ids)
    with pytest.raises(UsageError, match="both true"):
        chat_engine.chat_prompt(begun, continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(UsageError, match="from the assistant"):
        chat_engine.chat_prompt(begun)
    another = chat_engine.chat_prompt(begun, add_generation_prompt=True)[0]
    assert another == f"{text}<|mask|>\n# assistant\n"


def test_generation_prompt_can_be_left_out(chat_engine: Engine) -> None:
    with_prompt, _ = chat_engine.chat_prompt(CODE)
    without, _ = chat_engine.chat_prompt(CODE, add_generation_prompt=False)
    assert with_prompt == without + "# assistant\n"


def test_a_conversation_brings_its_own_template(chat_engine: Engine) -> None:
    own = "{{ bos_token }}{% for m in messages %}{{ m.content }};{% endfor %}"
    for _ in range(2):
        assert chat_engine.chat_prompt(CODE, chat_template=own)[0] == "<|endoftext|>Code.;def main(;"
    assert chat_engine.chat(CODE, PARAMS, chat_template=own).text
    assert chat_engine.chat_prompt(CODE)[0] != own


@pytest.mark.parametrize(
    "source",
    ["{% for %}", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "x" * (2**17 + 1),
     "{{ messages.__class__.__mro__[1].__subclasses__() }}"],
)  # fmt: skip
def test_a_bad_template_of_a_conversation_is_its_caller_s_mistake(chat_engine: Engine, source: str) -> None:
    """Its limits are those of the engine's own template (``test_chat_template.py``)."""
    with pytest.raises(UsageError, match=r"^chat_template"):
        chat_engine.chat(CODE, PARAMS, chat_template=source)


def test_engine_can_be_loaded_with_another_template(chat_engine: Engine) -> None:
    with Engine.load(chat_engine.folder, threads=1, chat_template="{{ messages[-1].content }}") as engine:
        assert engine.chat_prompt(CODE)[0] == "def main("
