"""The known peers, and the command that serves each on a checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .environments import python_of

TOOL = Path(__file__).resolve().parents[2] / "tools" / "hugging_face_folder.py"
GENAI, LLAMA_CPP, OPENVINO = "onnxruntime-genai", "llama.cpp", "openvino-genai"
_OF_GGUF = {LLAMA_CPP: "llama_cpp", OPENVINO: "openvino"}
_DRAFTS = "drafts"


def command_of(name: str, source: Path, work: Path, threads: int, drafts: int = 4) -> list[str]:
    """Return the command that serves the peer ``name`` on the checkpoint ``source``, a folder or a GGUF file.

    A precision may follow a colon (``onnxruntime-genai:int4``); ``+drafts`` at the end enables prompt lookup with at
    most ``drafts`` drafts. Files that the peer generates are stored in ``work``. Raises ``SystemExit`` if the peer is
    unknown or cannot read the checkpoint.
    """
    plain, _, with_drafts = name.partition("+")
    runtime, _, precision = plain.partition(":")
    if with_drafts not in ("", _DRAFTS) or runtime not in (GENAI, *_OF_GGUF) or (precision and runtime != GENAI):
        known = f"{GENAI}, {GENAI}:int4, {LLAMA_CPP} and {OPENVINO}"
        raise SystemExit(f"unknown peer {name}; choose from {known}, each also with +{_DRAFTS}")
    settings = ["--threads", str(threads), *(["--drafts", str(drafts)] if with_drafts else [])]
    if runtime in _OF_GGUF:
        if not source.is_file():
            raise SystemExit(f"{runtime} needs a GGUF file, but the engine was built from {source}")
        server = f"peers.{_OF_GGUF[runtime]}_server"
        return [str(python_of(runtime.replace(".", "-"))), "-m", server, str(source), *settings]
    folder = checkpoint_folder(source, work / "checkpoint")
    settings += ["--precision", precision or "fp32"]
    return [str(python_of(GENAI)), "-m", "peers.genai_server", str(folder), str(work / name), *settings]


def checkpoint_folder(source: Path, out: Path) -> Path:
    """Return the checkpoint ``source`` as a folder in Hugging Face format: itself, or ``out``, written if needed."""
    if source.is_dir():
        return source
    if not out.exists():
        subprocess.run([sys.executable, str(TOOL), str(source), str(out)], check=True, stdout=sys.stderr)
    return out
