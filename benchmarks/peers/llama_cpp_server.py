"""llama.cpp on a GGUF file, through llama-cpp-python: `python -m peers.llama_cpp_server FILE --threads N`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from .serve import Generate, serve


def main() -> None:
    """Serve one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--drafts", type=int, default=0, help="drafts per round from prompt lookup")
    arguments = parser.parse_args()

    def load() -> tuple[str, Generate]:
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        lookup = LlamaPromptLookupDecoding(num_pred_tokens=arguments.drafts) if arguments.drafts else None
        llama = llama_cpp.Llama(
            arguments.model, n_ctx=arguments.context, n_threads=arguments.threads,
            n_threads_batch=arguments.threads, draft_model=lookup, verbose=False,
        )  # fmt: skip

        def generate(prompt: Sequence[int], count: int) -> tuple[list[int], float]:
            llama.reset()
            ids = llama.generate(list(prompt), temp=0.0, repeat_penalty=1.0)
            tokens = [next(ids)]
            began = time.perf_counter()
            tokens += [next(ids) for _ in range(count - 1)]
            return tokens, time.perf_counter() - began

        return llama_cpp.__version__, generate

    serve(load)


if __name__ == "__main__":
    main()
