"""What ``--model`` and ``--draft`` may name: a short name, a local folder, or an id of the Hugging Face Hub."""

from __future__ import annotations

import difflib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...plugins.errors import BuildError, UsageError
from ..console.progress import Progress
from . import hub

_HERE = Path(__file__).parent.parent / "bundled"
_CONFIG = "config.json"
_REVISION = {"--model": "--revision", "--draft": "--draft-revision"}


@dataclass(frozen=True)
class Folder:
    """A checkpoint on this machine; those of the registry come with this package."""

    path: Path


@dataclass(frozen=True)
class HubRepo:
    """A checkpoint on the Hugging Face Hub. Without a ``revision`` it is whatever its owner publishes last."""

    repo: str
    revision: str | None = None


Source = Folder | HubRepo


@dataclass(frozen=True)
class Pair:
    """A target and its P-EAGLE head that belong together, and what is known about them.

    ``taps`` are what the head is fed if its own configuration does not say; ``taps_source`` says why these.
    ``drafter_size`` is what is published of the head's. ``evidence`` is what was verified for exactly these
    checkpoints, as (level, how); ``notes`` say what that leaves open, ``unknown`` what only the head will tell.
    """

    name: str
    description: str
    target: Source
    drafter: Source | None
    trained_depth: int | None
    taps: tuple[int, ...]
    taps_source: str
    drafter_size: str = ""
    evidence: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def config_folder(self) -> Path:
        """Where the target's ``config.json`` is bundled."""
        return self.target.path if isinstance(self.target, Folder) else _HERE / "models" / self.name


_RUNTIME_DEFAULT = "the default of vLLM and SGLang (2, L/2, L-3), not confirmed for this head"
_NEVER_LOADED = "never loaded here: what was compared with transformers is the architecture, on tiny random weights"

PAIRS = {
    pair.name: pair
    for pair in (
        Pair(
            name="demo",
            description="small Qwen3-architecture model of Python code with its P-EAGLE head, bundled",
            target=Folder(_HERE / "demo" / "target"),
            drafter=Folder(_HERE / "demo" / "drafter"),
            trained_depth=8,
            taps=(2, 6, 9),
            taps_source="the head's own configuration",
            evidence=(("parity", "target logits against transformers, drafter logits against PyTorch, on CPU"),),
        ),
        Pair(
            name="qwen3-coder-30b",
            description="Qwen3-Coder 30B-A3B Instruct (mixture of experts)",
            target=HubRepo("Qwen/Qwen3-Coder-30B-A3B-Instruct"),
            drafter=HubRepo("amazon/Qwen3-Coder-30B-A3B-Instruct-P-EAGLE"),
            trained_depth=18,
            taps=(2, 24, 45),
            taps_source=_RUNTIME_DEFAULT,
            notes=(_NEVER_LOADED,),
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
            notes=(_NEVER_LOADED, "no P-EAGLE head for it is known to be public: a build needs --draft"),
            unknown=("everything about the head",),
        ),
    )
}


_ADD_DRAFT = "add `--draft`, a P-EAGLE head trained for this model: a folder or an id of the Hugging Face Hub"


@dataclass(frozen=True)
class Resolved:
    """Two checkpoint folders, the names they were asked for by, and what the registry knows about them as a pair.

    The commits are those of the Hugging Face Hub, for what came from there.
    """

    model: str
    draft: str
    target: Path
    drafter: Path
    pair: Pair | None
    target_commit: str | None = None
    drafter_commit: str | None = None

    def repeatable(self) -> dict[str, str | None]:
        """The options that name exactly these checkpoints again, from any folder."""
        return {
            "model": self.model if self.model in PAIRS or self.target_commit else str(self.target),
            "draft": self.draft if self.draft in PAIRS or self.drafter_commit else str(self.drafter),
            "revision": self.target_commit,
            "draft_revision": self.drafter_commit,
        }


def resolve(
    model: str,
    draft: str | None = None,
    revision: str | None = None,
    draft_revision: str | None = None,
    progress: Progress | None = None,
) -> Resolved:
    """Folders for ``--model`` and ``--draft``, downloaded when they are not here yet.

    A short name brings its own drafter if it has one; anything else needs ``draft``. A revision is a branch, a tag or a
    commit of the Hugging Face Hub. Nothing is downloaded before both names are understood.
    """
    pair, target = PAIRS.get(model), _source(model, "--model", revision)
    if draft is None and pair is None:
        raise UsageError(f"--model {model} needs a drafter", why="only short names come with one", fix=_ADD_DRAFT)
    draft = model if draft is None else draft
    drafter = _source(draft, "--draft", draft_revision)
    target_folder, target_commit = _fetch(target, progress)
    drafter_folder, drafter_commit = _fetch(drafter, progress)
    known = pair if pair is PAIRS.get(draft) else None
    return Resolved(model, draft, target_folder, drafter_folder, known, target_commit, drafter_commit)


def resolve_target(
    model: str, revision: str | None = None, progress: Progress | None = None
) -> tuple[Path, str | None]:
    """The folder of the target alone, and the Hub's commit of it."""
    return _fetch(_source(model, "--model", revision), progress)


def has_drafter(model: str) -> bool:
    """Whether ``model`` is a short name that brings its drafter."""
    return drafter_source(model, None) is not None


def drafter_source(model: str, draft: str | None) -> Source | None:
    """Where the drafter would come from, without fetching it; None where none is named or known."""
    pair = PAIRS.get(model)
    return _source(draft, "--draft", None) if draft is not None else pair.drafter if pair else None


def target_source(model: str, revision: str | None = None) -> Source:
    """Where the target would come from, without fetching it."""
    return _source(model, "--model", revision)


def target_config(model: str, revision: str | None = None) -> tuple[dict[str, Any], str]:
    """The target's ``config.json``, without weights, and a sentence that says where it is from.

    A short name is answered from this package. The Hugging Face Hub is asked for ids, and for revisions.
    """
    pair, source = PAIRS.get(model), _source(model, "--model", revision)
    if pair and revision is None:
        return _read_config(pair.config_folder), f"The configuration of {model} that is bundled with peagle-compile."
    if isinstance(source, HubRepo):
        found = hub.download(source.repo, source.revision, files=hub.CONFIG)
        return _read_config(found.folder), f"The configuration of {source.repo} at commit {found.commit}."
    return _read_config(source.path), f"The configuration in {source.path}."


def _source(name: str, flag: str, revision: str | None) -> Source:
    """What a name stands for. A short name goes before a folder, a folder before an id."""
    path = os.path.expanduser(name)
    if name in PAIRS:
        source = PAIRS[name].target if flag == "--model" else _drafter(PAIRS[name])
    elif os.path.isdir(path):  # False for names that no folder can have, where pathlib raises
        source = Folder(Path(path).resolve())
    elif hub.is_id(name):
        source = HubRepo(name)
    else:
        raise _unknown(name, flag)
    if revision is None:
        return source
    if isinstance(source, HubRepo):
        return HubRepo(source.repo, revision)
    raise UsageError(
        f"{_REVISION[flag]} {revision} means nothing for {name}",
        why="it is a folder here, and only repositories of the Hugging Face Hub have revisions",
        fix=f"leave {_REVISION[flag]} out",
    )


def _drafter(pair: Pair) -> Source:
    if pair.drafter is None:
        raise UsageError(
            f"{pair.name} has no drafter of its own",
            why=f"no P-EAGLE head for {pair.description} is known to be public",
            fix=_ADD_DRAFT,
        )
    return pair.drafter


def _fetch(source: Source, progress: Progress | None) -> tuple[Path, str | None]:
    if isinstance(source, Folder):
        return source.path, None
    found = hub.download(source.repo, source.revision, progress=progress)
    return found.folder, found.commit


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / _CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BuildError(
            f"cannot read {folder / _CONFIG}", why=str(error), fix="name a checkpoint that has a config.json"
        ) from None
    if not isinstance(content, dict):
        raise BuildError(f"{folder / _CONFIG} does not hold a JSON object", fix="download the file again")
    return content


def _unknown(name: str, flag: str) -> UsageError:
    known = ", ".join(PAIRS)
    near = difflib.get_close_matches(name, PAIRS, 1, cutoff=0.5)
    if near:
        why = f"did you mean {near[0]}? the known names are: {known}"
    else:
        why = f"it is no folder, no id of the Hugging Face Hub and no known name; the known names are: {known}"
    return UsageError(
        f"{flag} {name!r} is not known",
        why=why,
        fix="pass one of these names, the path of a checkpoint folder (config.json and safetensors), or OWNER/NAME",
    )
