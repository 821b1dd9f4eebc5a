"""Write an FP8 checkpoint with NVIDIA's ModelOpt, as a reference.

pip install nvidia-modelopt==0.47.0 requests
python tools/modelopt_checkpoint.py TARGET OUT samples.jsonl [--kv-cache] [--dtype bfloat16]

Each line of samples.jsonl is {"input_ids": [...]}. ModelOpt 0.47 warns that it does not know transformers 5.23.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import torch
import transformers


def load(folder: Path, dtype: torch.dtype) -> Any:
    """Return the model of a checkpoint, with eager attention as in this project's calibration."""
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, architecture).from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()


def export(model: Any, samples: list[list[int]], out: Path, *, kv_cache: bool) -> None:
    """Calibrate (max) and export, as in NVIDIA's examples."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint

    config = copy.deepcopy(mtq.FP8_DEFAULT_CFG)
    if kv_cache:
        config["quant_cfg"] = [*config["quant_cfg"], *copy.deepcopy(mtq.FP8_KV_CFG["quant_cfg"])]
    with torch.inference_mode():
        mtq.quantize(model, config, lambda each: [each(torch.tensor([ids])) for ids in samples])
        export_hf_checkpoint(model, export_dir=str(out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--kv-cache", action="store_true", help="also write scales for cached keys and values")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    arguments = parser.parse_args()
    samples = [json.loads(line)["input_ids"] for line in arguments.samples.read_text().splitlines()]
    model = load(arguments.target, getattr(torch, arguments.dtype))
    export(model, samples, arguments.out, kv_cache=arguments.kv_cache)


if __name__ == "__main__":
    main()
