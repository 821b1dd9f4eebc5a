"""Prometheus metrics. Names match vLLM's so that its dashboards work; other metrics start with ``peagle:``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from ..draft_methods import METHODS
from ..engine import Engine
from ..grammars.tally import GrammarTally
from ..loop import Load
from ..requests.results import Delta, RequestOutput
from ..scheduling.prefix_cache import BLOCK

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
_TOKENS = [2**i for i in range(18)]
FARTHEST = 20  # positions with a series of their own; later positions share one


class ServerMetrics:
    """Metrics of one server, all labelled with its model."""

    def __init__(self, model: str, engine: Engine, faces: Iterable[str]) -> None:
        """``faces`` are the names of the APIs."""
        self.registry = CollectorRegistry()
        self._model = model

        def counter(name: str, text: str, *labels: str, owner: str = "vllm") -> Counter:
            return Counter(f"{owner}:{name}", text, ("model_name", *labels), registry=self.registry)

        def histogram(name: str, text: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(f"vllm:{name}", text, ("model_name",), registry=self.registry, buckets=tuple(buckets))

        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens.")
        self.generation_tokens = counter("generation_tokens", "Generated tokens.")
        self.prefix_queries = counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self.prefix_hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self.success = counter("request_success", "Finished requests, by finish reason.", "finished_reason")
        self.refused = counter("request_refused", "Refused requests, by HTTP status.", "status")
        self.drafts = counter("spec_decode_num_drafts", "Rounds with drafts.", "lossy")
        self.drafted = counter("spec_decode_num_draft_tokens", "Drafted tokens.", "lossy")
        self.accepted = counter("spec_decode_num_accepted_tokens", "Accepted draft tokens.", "lossy")
        self.requests = counter("api_requests", "Requests by API, including refused ones.", "api", owner="peagle")
        for face in faces:
            self.requests.labels(model, face)
        self.by_method = {
            name: counter(f"draft_method_{name}", text, "method", owner="peagle")
            for name, text in (
                ("requests", "Finished requests, by draft method."),
                ("draft_tokens", "Drafted tokens, by draft method."),
                ("accepted_tokens", "Accepted draft tokens, by draft method."),
            )
        }
        for each, method in product(self.by_method.values(), METHODS):
            each.labels(model, method)
        self.by_drafter = {
            name: counter(f"drafter_{name}", text, "drafter", owner="peagle")
            for name, text in (
                ("requests", "Finished requests, by drafter."),
                ("rounds", "Rounds with drafts, by drafter."),
                ("draft_tokens", "Drafted tokens, by drafter."),
                ("accepted_tokens", "Accepted draft tokens, by drafter."),
            )
        }
        self.accepted_per_position = counter(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted draft tokens, by position.", "lossy", "position"
        )
        self.rounds = counter("num_rounds", "Decoding rounds of requests, with or without drafts.", owner="peagle")
        self.later_rounds = counter(
            "later_num_drafts", "Rounds with drafts after a request's first 20 rounds.", owner="peagle"
        )
        self.later_accepted = counter(
            "later_num_accepted_tokens", "Drafts accepted after a request's first 20 rounds.", owner="peagle"
        )
        self.verify_seconds = counter("verify_seconds", "Time of the target, summed over all rounds.", owner="peagle")
        self.draft_seconds = counter("draft_seconds", "Time of the drafter, summed over all rounds.", owner="peagle")
        self.forced = counter("grammar_draft_tokens", "Draft tokens that a grammar forced.", owner="peagle")
        self.forced_accepted = counter(
            "grammar_accepted_tokens", "Draft tokens that a grammar forced and the target accepted.", owner="peagle"
        )
        self.first_token = histogram("time_to_first_token_seconds", "Time from arrival to the first token.", _SECONDS)
        self.between = histogram("inter_token_latency_seconds", "Time between tokens of a request.", _BETWEEN)
        self.whole = histogram("e2e_request_latency_seconds", "Time from arrival to the last token.", _SECONDS)
        self.queue = histogram("request_queue_time_seconds", "Time from arrival to the first pass.", _SECONDS)
        self.prefill = histogram("request_prefill_time_seconds", "Prefill time.", _SECONDS)
        self.decode = histogram("request_decode_time_seconds", "Time after the first token.", _SECONDS)
        self.per_token = histogram(
            "request_time_per_output_token_seconds", "Mean time between tokens of a choice.", _BETWEEN
        )
        self.prompt_length = histogram("request_prompt_tokens", "Prompt tokens per choice.", _TOKENS)
        self.length = histogram("request_generation_tokens", "Generated tokens per choice.", _TOKENS)
        caches = Info("vllm:cache_config", "The KV caches.", ("model_name",), registry=self.registry)
        caches.labels(model).info(_cache_labels(engine))
        ProcessCollector(registry=self.registry)
        self.registry.register(_Load(model, lambda: engine.load_now))
        self.registry.register(_Forms(model, engine.grammars))
        self.last_token = float("-inf")  # time of the last token, monotonic clock

    def note_token(self) -> None:
        """Record that a token was generated now."""
        self.last_token = time.monotonic()

    def text(self) -> bytes:
        """Return all series in Prometheus's text format."""
        return generate_latest(self.registry)

    def refuse(self, status: int) -> None:
        """Count a refused request."""
        self.refused.labels(self._model, str(status)).inc()

    def count_request(self, face: str) -> None:
        """Count a request to the paths of an API."""
        self.requests.labels(self._model, face).inc()

    def watch(self) -> RequestMeter:
        """Return a meter for a request that has just arrived."""
        return RequestMeter(self, self._model)


class RequestMeter:
    """Counts the tokens and times of one request."""

    def __init__(self, metrics: ServerMetrics, model: str) -> None:
        self._metrics, self._model = metrics, model
        self._arrived = self._last = time.perf_counter()
        self._tokens = 0

    def delta(self, delta: Delta) -> None:
        """Count new tokens. Tokens of one round share the time since the previous round."""
        count = len(delta.token_ids)
        if not count:
            return
        self._metrics.note_token()
        now = time.perf_counter()
        if not self._tokens:
            self._metrics.first_token.labels(self._model).observe(now - self._arrived)
        else:
            between = self._metrics.between.labels(self._model)
            for _ in range(count):
                between.observe((now - self._last) / count)
        self._tokens, self._last = self._tokens + count, now
        self._metrics.generation_tokens.labels(self._model).inc(count)

    def end(self, output: RequestOutput) -> None:
        """Count a finished request."""
        metrics, model, acceptance = self._metrics, self._model, output.acceptance
        metrics.success.labels(model, output.finish_reason).inc()
        metrics.prompt_tokens.labels(model).inc(len(output.prompt_token_ids))
        metrics.prefix_queries.labels(model).inc(len(output.prompt_token_ids))
        metrics.prefix_hits.labels(model).inc(output.cached_tokens)
        metrics.queue.labels(model).observe(output.queue_seconds)
        metrics.whole.labels(model).observe(time.perf_counter() - self._arrived)
        metrics.prefill.labels(model).observe(output.prefill_seconds)
        metrics.decode.labels(model).observe(output.decode_seconds)
        metrics.prompt_length.labels(model).observe(len(output.prompt_token_ids))
        metrics.length.labels(model).observe(len(output.token_ids))
        if len(output.token_ids) > 1:
            metrics.per_token.labels(model).observe(output.inter_token_latency)
        lossy = str(acceptance.is_lossy).lower()  # true if the request had an acceptance_tolerance
        metrics.drafts.labels(model, lossy).inc(acceptance.rounds)
        metrics.drafted.labels(model, lossy).inc(acceptance.drafted)
        metrics.accepted.labels(model, lossy).inc(acceptance.accepted)
        of_method = {"requests": 1, "draft_tokens": acceptance.drafted, "accepted_tokens": acceptance.accepted}
        for name, count in of_method.items():
            metrics.by_method[name].labels(model, output.draft).inc(count)
        if output.drafter:
            for name, count in (of_method | {"rounds": acceptance.rounds}).items():
                metrics.by_drafter[name].labels(model, output.drafter).inc(count)
        metrics.rounds.labels(model).inc(acceptance.rounds + acceptance.undrafted)
        metrics.later_rounds.labels(model).inc(acceptance.later_rounds)
        metrics.later_accepted.labels(model).inc(acceptance.later_accepted)
        metrics.forced.labels(model).inc(acceptance.grammar_drafted)
        metrics.forced_accepted.labels(model).inc(acceptance.grammar_accepted)
        metrics.verify_seconds.labels(model).inc(acceptance.verify_seconds)
        metrics.draft_seconds.labels(model).inc(acceptance.draft_seconds)
        for accepted, rounds in acceptance.histogram.items():
            for position in range(accepted):
                position_label = str(position) if position < FARTHEST else "beyond"
                metrics.accepted_per_position.labels(model, lossy, position_label).inc(rounds)


def _cache_labels(engine: Engine) -> dict[str, str]:
    """Return vLLM's labels for the caches: blocks of tokens for all requests."""
    caches, tokens = engine.manifest.target.caches, engine.load_now.cache_tokens
    return {
        "block_size": str(BLOCK),
        "cache_dtype": (caches[0].dtype if caches else "") or "auto",
        "enable_prefix_caching": str(engine.prefix_cache_bytes > 0),
        "num_gpu_blocks": str(tokens // BLOCK),
        "kv_cache_size_tokens": str(tokens),
        "prefix_cache_bytes": str(engine.prefix_cache_bytes),
    }


class _Load(Collector):
    """Gauges that are read on each scrape."""

    def __init__(self, model: str, load: Callable[[], Load]) -> None:
        self._model, self._load = model, load

    def collect(self) -> Iterable[Metric]:
        load = self._load()
        gauges = (
            ("vllm:num_requests_running", "Running requests.", load.running),
            ("vllm:num_requests_waiting", "Waiting requests.", load.waiting),
            ("peagle:num_slots", "Maximum number of concurrent requests.", load.slots),
            ("vllm:kv_cache_usage_perc", "KV cache usage; 1 means full.", load.cache_share),
            ("peagle:kv_cache_tokens", "Tokens in the KV caches.", load.cached_tokens),
            ("peagle:drafter_misfit", "Number of drafters that do not match the target.", len(load.warnings)),
        )
        for name, text, value in gauges:
            family = GaugeMetricFamily(name, text, labels=["model_name"])
            family.add_metric([self._model], value)
            yield family


class _Forms(Collector):
    """Structured output statistics, as counted by the engine."""

    def __init__(self, model: str, tally: GrammarTally) -> None:
        self._model, self._tally = model, tally

    def collect(self) -> Iterable[Metric]:
        requested = CounterMetricFamily(
            "peagle:grammar_requests", "Requests with structured outputs, by kind.", labels=["model_name", "form"]
        )
        for kind, count in sorted(self._tally.requests.copy().items()):
            requested.add_metric([self._model, kind], count)
        compiled = SummaryMetricFamily("peagle:grammar_compile_seconds", "Grammar compile time.", labels=["model_name"])
        compiled.add_metric([self._model], self._tally.compiled, self._tally.compile_seconds)
        failures = CounterMetricFamily(
            "peagle:grammar_failures", "Failed grammars, by reason.", labels=["model_name", "reason"]
        )
        for reason, count in (("refused", self._tally.refused), ("stuck", self._tally.stuck)):
            failures.add_metric([self._model, reason], count)
        return requested, compiled, failures
