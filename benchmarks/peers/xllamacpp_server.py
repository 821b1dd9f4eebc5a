"""llama.cpp on a GGUF file, through xllamacpp: `python -m peers.xllamacpp_server FILE WORK --threads N`."""

from __future__ import annotations

import ctypes
import json
import os
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .serve import Decoded, Served, parser, serve

_NGRAM, _CONTEXT = 3, 2048


def decoded(answer: Mapping[str, Any]) -> Decoded:
    """Return the tokens and times of an answer of llama.cpp's server."""
    timings = answer["timings"]
    return Decoded(list(answer["tokens"]), timings["prompt_ms"] / 1e3, timings["predicted_ms"] / 1e3)


def requantized(file: Path, name: str, out: Path, library: ctypes.CDLL) -> Path:
    """Write a GGUF file whose Q4_1 matrices have the format ``name``, rounded by ggml from their numbers, if needed."""
    import gguf
    import numpy as np

    if out.is_file():
        return out
    wanted, reader = gguf.GGMLQuantizationType[name.upper()], gguf.GGUFReader(file)
    arch = str(reader.fields["general.architecture"].contents())
    part = out.with_suffix(".part")
    writer = gguf.GGUFWriter(part, arch)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind, *inner = field.types
        writer.add_key_value(field.name, field.contents(), kind, sub_type=inner[-1] if inner else None)
    quantize = library.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    for tensor in reader.tensors:
        if tensor.tensor_type != gguf.GGMLQuantizationType.Q4_1:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        numbers = np.ascontiguousarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
        rows, columns = numbers.shape
        blocks = np.empty(gguf.quant_shape_to_byte_shape(numbers.shape, wanted), np.uint8)
        written = quantize(wanted, numbers.ctypes.data, blocks.ctypes.data, 0, rows, columns, None)
        if written != blocks.nbytes:
            raise SystemExit(f"{tensor.name} has {written} bytes in {name}, not {blocks.nbytes}")
        writer.add_tensor(tensor.name, blocks, raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(out)
    return out


def main() -> None:
    """Serve one model."""
    arguments = parser(__doc__).parse_args()

    def load() -> Served:
        import gguf
        import xllamacpp

        file, work = Path(arguments.model), Path(arguments.work)
        if arguments.format:
            work.mkdir(parents=True, exist_ok=True)
            library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
            file = requantized(file, arguments.format, work / f"{arguments.format}.gguf", library)
        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel, params.port = str(file), _CONTEXT, 1, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
        params.cache_ram_mib = 0
        kinds, chosen = xllamacpp.common_speculative_type, params.speculative
        if arguments.head:
            chosen.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3]
            chosen.draft.mparams.path = arguments.head
            chosen.draft.n_max, chosen.draft.p_min = arguments.drafts, 0.0
            for threads in (chosen.draft.cpuparams, chosen.draft.cpuparams_batch):
                threads.n_threads = arguments.threads
        elif arguments.drafts:
            chosen.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
            chosen.ngram_simple.size_n, chosen.ngram_simple.size_m = _NGRAM, arguments.drafts
        policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
        server = xllamacpp.Server(params)

        def ask(prompt: Sequence[int], count: int, *, cached: bool) -> dict[str, Any]:
            question = {"prompt": list(prompt), "n_predict": count, "temperature": 0, "ignore_eos": True,
                        "return_tokens": True, "cache_prompt": cached}  # fmt: skip
            body, headers = json.dumps(question).encode(), {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{server.listening_address}/completion", body, headers)
            with urllib.request.urlopen(request) as response:
                answer: dict[str, Any] = json.loads(response.read())
            return answer

        ask([0], 2, cached=False)
        for thread in os.listdir("/proc/self/task"):  # llama.cpp changes them: beside other load, it would wait
            os.sched_setscheduler(int(thread), policy, priority)

        def window(prompt: Sequence[int], tokens: Sequence[int]) -> float:
            ask(prompt, 1, cached=True)
            return decoded(ask([*prompt, *tokens], 1, cached=True)).first

        kernels = [flag.split(" = ")[0] for flag in xllamacpp.get_system_info().split(" | ") if flag.endswith("= 1")]
        size = sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(file).tensors)
        version = f"{xllamacpp.__version__} ({', '.join(kernels)})"
        return Served(version, size, lambda prompt, count: decoded(ask(prompt, count, cached=False)), window)

    serve(load)


if __name__ == "__main__":
    main()
