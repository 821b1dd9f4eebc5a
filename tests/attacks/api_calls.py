"""Random calls of the Python API: each returns a correct result or raises a ``PeagleError``."""

from __future__ import annotations

import random
from typing import Any

from peagle.engines import Engine, RequestOutput, SamplingParams
from peagle.plugins.errors import PeagleError
from tests.attacks import nasty_values as nasty
from tests.models import VOCAB

Piece = tuple[str, Any]

_CALLS = ("generate", "generate", "stream", "stream", "target_logits", "draft_logits", "load")
_FIELDS = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop", "ignore_eos",
    "acceptance_tolerance", "unknown",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "bad_token_ids", "min_tokens",
    "logprobs", "prompt_logprobs", "stop_token_ids", "allowed_token_ids", "bad_words",
)  # fmt: skip
_LOADS = ("max_batch_size", "threads", "check", "path")
_PROBE = SamplingParams(max_tokens=8, temperature=0.7, seed=3, ignore_eos=True)


def draw(rng: random.Random) -> list[Piece]:
    """A call, and its arguments as (name, value); what is not named is as it should be."""
    call = rng.choice(_CALLS)
    pieces: list[Piece] = [("call", call)]
    if call == "load":
        return pieces + [(f"load.{name}", nasty.python_value(rng)) for name in rng.sample(_LOADS, rng.randint(1, 2))]
    if rng.random() < 0.5:
        pieces.append(("prompt", _prompt(rng)))
    if rng.random() < 0.1:
        pieces.append(("prompts", nasty.python_value(rng)))
    if rng.random() < 0.4:
        pieces.append(("k", rng.choice((nasty.integer(rng), rng.randint(0, 6), nasty.python_value(rng)))))
    if rng.random() < 0.25:
        pieces.append(("draft", rng.choice(("ngram", "ngram", "none", nasty.python_value(rng)))))
    if rng.random() < 0.1:
        pieces.append(("params", nasty.python_value(rng)))
    return pieces + [(f"params.{name}", _parameter(rng, name)) for name in rng.sample(_FIELDS, rng.randint(0, 3))]


def run(engine: Engine, pieces: list[Piece]) -> str | None:
    """Describe what is wrong with the end of a call, or return None; the engine must be unaffected."""
    before = _probe(engine)
    try:
        complaint = _call(engine, dict(pieces))
    except PeagleError as error:
        complaint = None if str(error) else "an error that says nothing"
    except Exception as error:
        complaint = f"{type(error).__name__}: {str(error)[:300]}"
    return complaint or (None if _probe(engine) == before else "the engine is another one after the call")


def _call(engine: Engine, given: dict[str, Any]) -> str | None:
    if given.get("call") == "load":
        told = {name.partition(".")[2]: value for name, value in given.items() if name.startswith("load.")}
        loaded = Engine.load(told.pop("path", engine.folder), **{"threads": 1, **told})
        return None if _probe(loaded) == _probe(engine) else "another text after another way to load"
    prompt, k, draft = given.get("prompt", [5, 9, 30]), given.get("k"), given.get("draft")
    fields = {name.partition(".")[2]: value for name, value in given.items() if name.startswith("params.")}
    fields.pop("unknown", None)
    if "params" in given:
        params, fields = given["params"], {"max_tokens": SamplingParams().max_tokens}  # None is the default
    else:
        params = SamplingParams(**{"max_tokens": 8, **fields})
    match given.get("call", "generate"):
        case "target_logits":
            logits = engine.target_logits(prompt)
            return None if logits.shape == (len(prompt), VOCAB) else f"logits of {logits.shape}"
        case "draft_logits":
            logits = engine.draft_logits(prompt, 3 if k is None else k)
            return None if logits.ndim == 2 else f"logits of {logits.shape}"
        case "stream":
            stream = engine.stream(prompt, params, num_speculative_tokens=k, draft=draft)
            deltas = list(stream)
            result = stream.result
            ids = tuple(token for delta in deltas for token in delta.token_ids)
            if ids != result.token_ids or "".join(delta.text for delta in deltas) != result.text:
                return "the deltas are not the result"
            return _broken(result, fields)
        case _:
            prompts = given.get("prompts", [prompt])
            results = engine.generate(prompts, params, num_speculative_tokens=k, draft=draft)
            return next((wrong for result in results if (wrong := _broken(result, fields))), None)


def _broken(result: RequestOutput, fields: dict[str, Any]) -> str | None:
    """The promise that an output does not keep."""
    if not result.token_ids or not all(type(token) is int and 0 <= token < VOCAB for token in result.token_ids):
        return f"token ids {result.token_ids[:5]}"
    if result.finish_reason not in ("stop", "length"):
        return f"finished because of {result.finish_reason!r}"
    most = fields.get("max_tokens", 8)
    return f"{len(result.token_ids)} tokens, {most} were asked for" if len(result.token_ids) > most else None


def _probe(engine: Engine) -> list[tuple[tuple[int, ...], str]]:
    outputs = engine.generate([[7, 8, 9]], _PROBE)
    return [(output.token_ids, output.text) for output in outputs]


def _prompt(rng: random.Random) -> Any:
    roll = rng.random()
    if roll < 0.3:
        return nasty.python_value(rng)
    if roll < 0.5:
        return nasty.text(rng)
    if roll < 0.7:
        return [nasty.python_value(rng) for _ in range(rng.randint(0, 3))]
    return [rng.randint(-1 if roll < 0.75 else 0, VOCAB - 1 + (roll > 0.95)) for _ in range(rng.randint(1, 100))]


def _parameter(rng: random.Random, name: str) -> Any:
    roll = rng.random()
    if roll < 0.25:
        return nasty.python_value(rng)
    if name == "stop":
        texts = [nasty.text(rng) for _ in range(rng.randint(0, 3))]
        return rng.choice((tuple(texts), texts, "ab"))
    if name == "ignore_eos":
        return rng.choice((True, False, 1, 0))
    if name in ("max_tokens", "top_k", "seed"):
        return nasty.integer(rng)
    return nasty.number(rng)
