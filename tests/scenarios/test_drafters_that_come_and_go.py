"""Drafters are added, loaded, selected, unloaded and removed under load: no request is lost or changed."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.checkpoints.known_pairs import PAIRS, Local
from peagle.compiler.pipeline.engine_drafters import DrafterRequest, add_drafter, remove_drafter
from peagle.engines import Engine, SamplingParams
from peagle.engines.folder.manifest import BUILT_IN
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from tests.engines.serving.calls import call
from tests.fixtures.servers import MODEL

KEY = {"authorization": "Bearer secret"}
REQUESTS, CLIENTS = 200, 6
PROMPTS = ["def area(width, height):\n", "import os\n\n", "class Node:\n    def __init__(", "for i in range("]


def bodies() -> list[dict[str, Any]]:
    """Requests of every kind, greedy and sampled."""
    rng = random.Random(4)
    return [
        {
            "prompt": rng.choice(PROMPTS),
            "max_tokens": rng.choice([4, 12]),
            "temperature": rng.choice([0, 0.9]),
            "seed": rng.randrange(3),
            "ignore_eos": True,
        }
        for _ in range(REQUESTS)
    ]


@dataclass(frozen=True)
class Comings:
    """An engine with a drafter beside its own, and the head of one that comes."""

    engine: Path
    other: str
    late: str


@pytest.fixture(params=["demo pair", pytest.param("SmolLM2", marks=pytest.mark.slow)])
def comings(request: pytest.FixtureRequest, tmp_path: Path) -> Comings:
    """A copy, to be changed. The drafter that SmolLM2's engine has already is of another method, EAGLE-3."""
    if request.param == "demo pair":
        engine = shutil.copytree(request.getfixturevalue("drafters_folder"), tmp_path / "engine")
        return Comings(engine, "noisy", "demo")
    engine = shutil.copytree(request.getfixturevalue("smollm2_engine"), tmp_path / "engine")
    add_drafter(DrafterRequest(engine, "eagle3", "other"))
    head = PAIRS["smollm2-135m"].drafter
    assert isinstance(head, Local)
    return Comings(engine, "other", str(head.path))


def test_texts_stay_the_same_while_drafters_come_and_go(comings: Comings) -> None:
    folder = comings.engine
    target = {path: path.read_bytes() for path in (folder / "target").iterdir()}

    def ask(method: str, path: str, body: Any) -> tuple[int, Any]:
        status, _, content = call(server, method, path, body, KEY)
        return status, json.loads(content)

    def complete(body: dict[str, Any]) -> tuple[int, Any]:
        return ask("POST", "/v1/completions", body)

    def come() -> None:
        add_drafter(DrafterRequest(folder, comings.late, "late"))
        assert ask("POST", "/v1/drafters", {"name": "late"})[0] == 200

    def go() -> None:
        long = SamplingParams(max_tokens=150, ignore_eos=True)
        last = [engine.submit(prompt, long, draft="late", num_speculative_tokens=4) for prompt in PROMPTS]
        assert ask("DELETE", "/v1/drafters/late", None)[0] == 200
        remove_drafter(folder, "late")
        for prompt, each in zip(PROMPTS, last, strict=True):
            output = each.result()
            assert output.drafter == "late"
            assert output.acceptance.accepted
            assert output.token_ids == engine.generate([prompt], long, draft="none")[0].token_ids

    with Engine.load(folder, max_batch_size=3, threads=1, drafters=[comings.other]) as engine:
        server = Server(engine, ServerSettings(MODEL, api_keys=("secret",)), port=0)
        server.start()
        try:
            asked = bodies()
            different = {json.dumps(each): each for each in asked}
            plain = {key: complete(each | {"draft": "none"}) for key, each in different.items()}
            choices: list[list[str | None]] = [[None, BUILT_IN, comings.other, "ngram", "none"]] * 4
            choices[1] = choices[2] = ["late", "late", BUILT_IN, comings.other]
            changes: dict[int, Callable[[], None]] = {1: come, 3: go}
            rng, answers = random.Random(5), []
            with ThreadPoolExecutor(CLIENTS) as clients:
                for phase, names in enumerate(choices):
                    if phase in changes:  # while requests of the last phase run
                        changes[phase]()
                    some = asked[phase * REQUESTS // 4 : (phase + 1) * REQUESTS // 4]
                    sent: list[Future[tuple[int, Any]]] = [
                        clients.submit(complete, each | {"draft": rng.choice(names)}) for each in some
                    ]
                    if phase == 2:  # the server has taken in all that name the drafter that goes
                        [each.result() for each in sent]
                    answers += zip(some, sent, strict=True)
                results = [(body, sent.result()) for body, sent in answers]
        finally:
            server.stop(immediately=True)
            assert server.wait(10)
    assert Counter(status for _, (status, _) in results) == {200: REQUESTS}
    for body, (_, content) in results:
        expected = plain[json.dumps(body)][1]
        assert content["choices"][0]["text"] == expected["choices"][0]["text"]
    assert {path: path.read_bytes() for path in (folder / "target").iterdir()} == target
