"""openvino-genai on a GGUF file, which it reads directly: `python -m peers.openvino_server FILE --threads N`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from .serve import Generate, serve

_NGRAM = 3


def main() -> None:
    """Serve one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--drafts", type=int, default=0, help="drafts per round from prompt lookup")
    arguments = parser.parse_args()

    def load() -> tuple[str, Generate]:
        import numpy as np
        import openvino
        import openvino_genai

        lookup = {"prompt_lookup": True} if arguments.drafts else {}
        pipeline = openvino_genai.LLMPipeline(
            arguments.model, "CPU", INFERENCE_NUM_THREADS=arguments.threads, **lookup
        )  # fmt: skip
        config = openvino_genai.GenerationConfig()
        config.do_sample, config.ignore_eos, config.apply_chat_template = False, True, False
        if arguments.drafts:
            config.num_assistant_tokens, config.max_ngram_size = arguments.drafts, _NGRAM

        def generate(prompt: Sequence[int], count: int) -> tuple[list[int], float]:
            config.max_new_tokens = count
            began = time.perf_counter()
            answer = pipeline.generate(openvino.Tensor(np.array([prompt], np.int64)), config)
            seconds = time.perf_counter() - began - answer.perf_metrics.get_ttft().mean / 1e3
            return [int(token) for token in answer.tokens[0]], seconds

        return str(openvino_genai.__version__), generate

    serve(load)


if __name__ == "__main__":
    main()
