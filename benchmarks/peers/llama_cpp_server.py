"""llama.cpp on a GGUF file, through llama-cpp-python: `python -m peers.llama_cpp_server FILE WORK ...`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from .serve import Decoded, Served, parser, serve

_CONTEXT = 2048


def main() -> None:
    """Serve one model."""
    arguments = parser(__doc__).parse_args()

    def load() -> Served:
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        lookup = LlamaPromptLookupDecoding(num_pred_tokens=arguments.drafts) if arguments.drafts else None
        llama = llama_cpp.Llama(
            arguments.model, n_ctx=_CONTEXT, n_threads=arguments.threads,
            n_threads_batch=arguments.threads, draft_model=lookup, verbose=False,
        )  # fmt: skip

        def generate(prompt: Sequence[int], count: int) -> Decoded:
            llama.reset()
            began = time.perf_counter()
            ids = llama.generate(list(prompt), temp=0.0, repeat_penalty=1.0)
            tokens = [next(ids)]
            first = time.perf_counter()
            tokens += [next(ids) for _ in range(count - 1)]
            return Decoded(tokens, first - began, time.perf_counter() - first)

        return Served(llama_cpp.__version__, os.path.getsize(arguments.model), generate)

    serve(load)


if __name__ == "__main__":
    main()
