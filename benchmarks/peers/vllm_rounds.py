"""vLLM on a checkpoint with a head, in FP32: `python -m peers.vllm_rounds TARGET HEAD --k K --threads N`.

Questions are `{"prompt": ids, "count": n, "ends": ids}`, with `{"tokens", "drafted", "accepted"}` as the answer: the
greedy text, and the drafts and accepted drafts of every round. With `"logprobs": n`, the answer has the logprobs of the
n most likely next tokens instead: `{"logprobs": [[id, logprob], ...]}`.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from .serve import Answer, serve_answers

# One process, no cores bound, 1 GB for the cache, and nothing from the Hub. vLLM reads them on import.
SETTINGS = {
    "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip


def main() -> None:
    """Serve one target with one head."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("head")
    parser.add_argument("--k", type=int, required=True)
    parser.add_argument("--speculation", type=json.loads, default={}, help="further keys of the speculative config")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, default=2048)
    arguments = parser.parse_args()

    def load() -> tuple[str, Answer]:
        os.environ.update(SETTINGS, OMP_NUM_THREADS=str(arguments.threads))
        import vllm

        model = vllm.LLM(
            arguments.target, dtype="float32", enforce_eager=True, skip_tokenizer_init=True, max_num_seqs=1,
            max_model_len=arguments.context, enable_prefix_caching=False, gpu_memory_utilization=0.1,
            per_request_spec_decode_metrics="detailed", disable_log_stats=False,
            speculative_config={
                "model": arguments.head, "method": "eagle3", "num_speculative_tokens": arguments.k,
                **arguments.speculation,
            },
        )  # fmt: skip

        def answer(question: dict[str, Any]) -> dict[str, Any]:
            params = vllm.SamplingParams(
                temperature=0, max_tokens=question["count"], stop_token_ids=question["ends"], detokenize=False,
                logprobs=question.get("logprobs"),
            )  # fmt: skip
            (out,) = model.generate([{"prompt_token_ids": question["prompt"]}], params, use_tqdm=False)
            (text,) = out.outputs
            if "logprobs" in question:
                return {"logprobs": [[token, value.logprob] for token, value in text.logprobs[0].items()]}
            rounds = text.spec_decode_metrics
            drafted, accepted = (rounds.per_step_drafted, rounds.per_step_accepted) if rounds else ([], [])
            return {"tokens": list(text.token_ids), "drafted": drafted, "accepted": accepted}

        return vllm.__version__, answer

    serve_answers(load)


if __name__ == "__main__":
    main()
