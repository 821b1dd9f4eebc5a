"""openvino-genai on a GGUF file, which it reads directly: `python -m peers.openvino_server FILE WORK ...`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from .serve import Decoded, Served, parser, serve

_NGRAM = 3


def main() -> None:
    """Serve one model."""
    arguments = parser(__doc__).parse_args()

    def load() -> Served:
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

        def generate(prompt: Sequence[int], count: int) -> Decoded:
            config.max_new_tokens = count
            began = time.perf_counter()
            answer = pipeline.generate(openvino.Tensor(np.array([prompt], np.int64)), config)
            first = answer.perf_metrics.get_ttft().mean / 1e3
            return Decoded([int(token) for token in answer.tokens[0]], first, time.perf_counter() - began - first)

        return Served(str(openvino_genai.__version__), os.path.getsize(arguments.model), generate)

    serve(load)


if __name__ == "__main__":
    main()
