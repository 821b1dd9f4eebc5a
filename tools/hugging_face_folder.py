"""Write a checkpoint in Hugging Face format: safetensors in FP32, with its configuration and tokenizer.

    python tools/hugging_face_folder.py MODEL OUT

MODEL is a value of `--model`: a short name, a folder, or a GGUF file. Quantized weights are dequantized, so that other
runtimes can be compared on the same weights.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from safetensors.numpy import save_file

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.resolve_names import resolve_target

SIDE_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def write_folder(checkpoint: Checkpoint, out: Path) -> None:
    """Write ``checkpoint`` to a new folder as one ``model.safetensors``; holds all weights in memory."""
    out.mkdir(parents=True)
    config = {name: value for name, value in checkpoint.config.items() if name != "quantization_config"}
    (out / "config.json").write_text(json.dumps({**config, "dtype": "float32"}, indent=2) + "\n")
    for name in SIDE_FILES:
        if (checkpoint.folder / name).is_file():
            shutil.copyfile(checkpoint.folder / name, out / name)
    tensors = {name: checkpoint.read(name) for name in checkpoint.tensors}
    save_file(tensors, out / "model.safetensors", {"format": "pt"})


def main() -> None:
    """Write the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    write_folder(Checkpoint.open(resolve_target(arguments.model).target), arguments.out)


if __name__ == "__main__":
    main()
