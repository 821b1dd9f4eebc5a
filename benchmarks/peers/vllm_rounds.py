"""vLLM on a checkpoint, in FP32: `python -m peers.vllm_rounds TARGET WORK --head HEAD --drafts K --threads N`.

It answers the questions of `serve.py`, and one for `compare_with_vllm.py`: `{"prompt": ids, "count": n, "ends": ids}`,
with `{"tokens", "drafted", "accepted"}` as the answer: the greedy text, and the drafts and accepted drafts of every
round. With `"logprobs": n`, the answer has the logprobs of the n most likely next tokens instead:
`{"logprobs": [[id, logprob], ...]}`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .serve import Answer, parser, serve_answers

# One process, no cores bound, 1 GB for the cache, and nothing from the Hub. vLLM reads them on import.
SETTINGS = {
    "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip


def timed(tokens: list[int], times: Any) -> dict[str, Any]:
    """Return an answer to the question of a benchmark, from vLLM's times of a request."""
    first = times.first_token_ts
    return {"tokens": tokens, "first": first - times.scheduled_ts, "seconds": times.last_token_ts - first}


def main() -> None:
    """Serve one target, with one head or none."""
    options = parser(__doc__)
    options.add_argument("--speculation", type=json.loads, default={}, help="further keys of the speculative config")
    options.add_argument("--context", type=int, default=2048)
    arguments = options.parse_args()

    def load() -> tuple[str, Answer]:
        os.environ.update(SETTINGS, OMP_NUM_THREADS=str(arguments.threads))
        import vllm

        drafting: dict[str, Any] = {}
        if arguments.head:
            config = {"model": arguments.head, "method": "eagle3", "num_speculative_tokens": arguments.drafts}
            drafting = {"speculative_config": config | arguments.speculation,
                        "per_request_spec_decode_metrics": "detailed"}  # fmt: skip
        model = vllm.LLM(
            arguments.model, dtype="float32", enforce_eager=True, skip_tokenizer_init=True, max_num_seqs=1,
            max_model_len=arguments.context, enable_prefix_caching=False, gpu_memory_utilization=0.1,
            disable_log_stats=False, **drafting,
        )  # fmt: skip

        def answer(question: dict[str, Any]) -> dict[str, Any]:
            if "bytes" in question:
                return {"bytes": sum(file.stat().st_size for file in Path(arguments.model).glob("*.safetensors"))}
            if "window" in question:
                return {"seconds": None}
            ends = question.get("ends")
            params = vllm.SamplingParams(
                temperature=0, max_tokens=question["count"], stop_token_ids=ends, ignore_eos=ends is None,
                detokenize=False, logprobs=question.get("logprobs"),
            )  # fmt: skip
            (out,) = model.generate([{"prompt_token_ids": question["prompt"]}], params, use_tqdm=False)
            (text,) = out.outputs
            if "logprobs" in question:
                return {"logprobs": [[token, value.logprob] for token, value in text.logprobs[0].items()]}
            if ends is None:
                return timed(list(text.token_ids), out.metrics)
            rounds = text.spec_decode_metrics
            drafted, accepted = (rounds.per_step_drafted, rounds.per_step_accepted) if rounds else ([], [])
            return {"tokens": list(text.token_ids), "drafted": drafted, "accepted": accepted}

        return vllm.__version__, answer

    serve_answers(load)


if __name__ == "__main__":
    main()
