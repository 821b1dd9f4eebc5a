"""Drafts that are made on the host, from the text of each request."""

from __future__ import annotations

from peagle.engines import Engine, SamplingParams


def test_texts_are_kept_only_while_their_requests_run(tiny_engine: Engine) -> None:
    prompts, params = [[3] * 9, [5, 7] * 6, [9] * 8], SamplingParams(max_tokens=40, ignore_eos=True)
    with Engine(tiny_engine.folder, tiny_engine.manifest, tiny_engine._backend, tiny_engine.tokenizer) as engine:
        texts = [engine.submit(prompt, params, draft="ngram", num_speculative_tokens=2) for prompt in prompts]
        outputs = [text.result() for text in texts]
        assert sum(each.acceptance.drafted for each in outputs)
        scheduler = engine._loop._scheduler
        assert scheduler is not None
        assert not scheduler._rounds._on_host._texts
