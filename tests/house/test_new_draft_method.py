"""A new draft method requires one record: suffix decoding, defined here, works from the build to the metrics."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.draft_methods import METHODS, DraftMethod, register
from peagle.engines.folder.manifest import Manifest
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from peagle.engines.serving.speculative_config import speculation_of
from peagle.plugins.errors import EnvironmentProblem
from tests.engines.mixed_requests import MIXED, PROMPTS
from tests.engines.serving.calls import call
from tests.fixtures.commands import Run
from tests.house.tree import ROOT
from tests.models import Pair

LOOPS = [*PROMPTS, [7, 8, 9] * 6]
POLICIES = [*MIXED, SamplingParams(max_tokens=40, ignore_eos=True)]


class SuffixProposer:
    """Drafts the tokens that followed an earlier occurrence of the text's longest suffix (arXiv 2411.04975)."""

    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int]:
        text = list(tokens)
        for size in range(min(len(text) - 1, 16), 0, -1):
            for at in range(len(text) - size - 1, -1, -1):
                if text[at : at + size] == text[-size:]:
                    return text[at + size : at + size + k]
        return []


SUFFIX = DraftMethod(
    name="suffix",
    title="suffix decoding",
    help="drafts from the longest suffix that occurred before",
    note="by suffix",
    proposer=SuffixProposer,
    depth=6,
    vllm_names=("suffix",),
)


@pytest.fixture(scope="module")
def suffix() -> Iterator[None]:
    """The one line of registration."""
    register(SUFFIX)
    yield
    del METHODS["suffix"]


@pytest.fixture(scope="module")
def folder(suffix: None, tiny_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of the tiny target, built on the command line."""
    from peagle.compiler.cli import run_cli

    out = tmp_path_factory.mktemp("suffix") / "engine"
    options = ("--draft", "suffix", "--num-speculative-tokens", 4, "--max-seq-len", 96, "--out", out)
    assert run_cli(["build", str(tiny_pair.target), *map(str, options)]) == 0
    return out


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    with Engine.load(folder, max_batch_size=3, threads=1) as loaded:
        yield loaded


def test_the_manifest_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Manifest.read(folder)
    assert (manifest.method, manifest.draft_method, manifest.drafter) == ("suffix", SUFFIX, None)
    assert manifest.speculation.max_num_speculative_tokens == SUFFIX.depth
    monkeypatch.delitem(METHODS, "suffix")
    with pytest.raises(EnvironmentProblem, match="unknown draft method 'suffix'"):
        Manifest.read(folder)


def test_the_text_is_that_of_plain_decoding(engine: Engine) -> None:
    plain = engine.generate(LOOPS, POLICIES, draft="none")
    for k in (None, 1, 6):
        outputs = engine.generate(LOOPS, POLICIES, num_speculative_tokens=k)
        assert [(each.token_ids, each.draft) for each in outputs] == [(each.token_ids, "suffix") for each in plain]
        assert sum(each.acceptance.accepted for each in outputs) > 10


def test_it_shares_rounds_with_every_other_method(tiny_engine: Engine, suffix: None) -> None:
    """In an engine with a head, next to its drafter and n-grams."""
    (plain,) = tiny_engine.generate([LOOPS[-1]], POLICIES[-1], draft="none")
    at_once = [tiny_engine.submit(LOOPS[-1], POLICIES[-1], draft=draft) for draft in ("suffix", "ngram", None)]
    outputs = [each.result() for each in at_once]
    assert {each.token_ids for each in outputs} == {plain.token_ids}
    assert [each.draft for each in outputs] == ["suffix", "ngram", "peagle"]
    assert all(each.acceptance.drafted for each in outputs)


def test_the_command_line_offers_it_and_inspect_shows_it(cli: Run, folder: Path) -> None:
    from peagle.compiler.request.verb_options import BUILD
    from peagle.compiler.verbs.flags.completion import completion

    complete = completion(BUILD.find("draft", "a test"))
    assert complete is not None
    assert complete("suf") == ["suffix"]
    assert "by suffix" in cli("inspect", folder).out
    assert json.loads(cli("inspect", folder, "--json").out)["method"] == "suffix"
    few = ("--prompts", 1, "--max-tokens", 16, "--num-speculative-tokens", 4, "--only", "losslessness", "--json")
    done = cli("verify", folder, *few, "--draft", "suffix")
    assert (done.code, json.loads(done.out)["losslessness"]["draft"]) == (0, "suffix"), done.err
    asked = ("--prompt", "aaaa", "--max-tokens", 8, "--ignore-eos", "--json")
    texts = {json.loads(cli("run", folder, *asked, *more).out)["text"] for more in ((), ("--draft", "none"))}
    assert len(texts) == 1


def test_the_help_lists_it() -> None:
    """In a process that registers it before the command line is made."""
    code = (
        "import sys\nfrom tests.house.test_new_draft_method import SUFFIX, register\nregister(SUFFIX)\n"
        "from peagle.compiler.cli import run_cli\n"
        "for verb in ('build', 'run', 'verify'):\n    print(run_cli([verb, '--help']), 'ends', verb)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    rest = done.stdout
    for verb in ("build", "run", "verify"):
        shown, end, rest = rest.partition(f"0 ends {verb}\n")
        assert end
        assert "suffix" in shown, verb


def test_the_benchmark_measures_it(engine: Engine, tiny_engine: Engine, suffix: None) -> None:
    from peagle.compiler.bench.modes import modes_of

    for each in (engine, tiny_engine):
        assert "suffix decoding, K = 4" in [mode.title for mode in modes_of([each.manifest], counts=[4])]


def test_vllm_s_name_means_it(engine: Engine, tiny_engine: Engine, suffix: None) -> None:
    for each in (engine, tiny_engine):
        assert speculation_of('{"method": "suffix"}', {}, each.manifest).drafts.draft == "suffix"


def test_a_build_reads_vllm_s_name(cli: Run, tiny_pair: Pair, suffix: None) -> None:
    asked = ("--speculative-config", '{"method": "suffix"}', "--max-seq-len", 96, "--dry-run", "--json")
    done = cli("build", tiny_pair.target, *asked)
    assert done.code == 0, done.err
    plan = json.loads(done.out)
    assert (plan["num_speculative_tokens"], plan["drafter"]["bytes"]) == (SUFFIX.depth, 0)
    assert SUFFIX.help in plan["drafter"]["note"]


def test_the_server_takes_it_and_counts_it(engine: Engine) -> None:
    server = Server(engine, ServerSettings("tiny"), port=0)
    server.start()
    try:
        body = {"prompt": LOOPS[-1], "max_tokens": 30, "temperature": 0, "ignore_eos": True}
        for draft in ("suffix", "none"):
            status, _, content = call(server, "POST", "/v1/completions", body | {"draft": draft})
            assert status == 200, content
        counted = dict(line.rsplit(" ", 1) for line in call(server, "GET", "/metrics")[2].decode().splitlines())
    finally:
        server.stop(immediately=True)
        assert server.wait(10)
    told = {
        name: float(counted[f'peagle:draft_method_{name}_total{{method="suffix",model_name="tiny"}}'])
        for name in ("requests", "draft_tokens", "accepted_tokens")
    }
    assert told["requests"] == 1
    assert told["draft_tokens"] >= told["accepted_tokens"] > 0
    assert float(counted['peagle:draft_method_requests_total{method="none",model_name="tiny"}']) == 1
