"""Checkpoints from the Hugging Face Hub: only the files that a build reads, kept in the Hub's own cache.

``HF_HOME``, ``HF_TOKEN``, ``HF_ENDPOINT`` and ``HF_HUB_OFFLINE`` mean what they always mean. What was downloaded once
is found again without a network; a download that was cut off goes on with the files that are not complete.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ...plugins.errors import BuildError, EnvironmentProblem, PeagleError, UsageError
from ...plugins.optional_packages import require
from ..console.printing import size
from ..console.progress import Advance, Progress, Quiet
from ..store.atomic_files import free_bytes

CONFIG = ("config.json",)
_WEIGHTS = "*.safetensors"
CHECKPOINT = (
    *CONFIG,
    _WEIGHTS,
    "*.safetensors.index.json",
    "generation_config.json",
    "hf_quant_config.json",
    "special_tokens_map.json",
    "tokenizer*.json",
    "chat_template.json",
    "*.jinja",
)
_BELOW = "*/*"  # other formats of the same weights lie in sub-folders, such as original/ and metal/
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_ID = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]{0,199}")
_BYTES_ON_DISK = "huggingface_hub.snapshot_download"  # how the library names the bar that counts them
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_RESUME = "run the same command again: files that are complete are kept"


class Unreachable(EnvironmentProblem):
    """The Hub does not hand out a checkpoint, and it is not in the cache (exit code 3)."""


@dataclass(frozen=True)
class Snapshot:
    """The files of one commit in a local folder."""

    folder: Path
    commit: str


def is_id(name: str) -> bool:
    """Whether ``name`` has the form ``owner/name`` of a repository of the Hub."""
    return bool(_ID.fullmatch(name)) and "--" not in name and ".." not in name and not name.endswith(".git")


def download(
    repo: str,
    revision: str | None = None,
    *,
    files: Sequence[str] = CHECKPOINT,
    progress: Progress | None = None,
) -> Snapshot:
    """The files of ``repo`` that match ``files``, at a branch, tag or commit; fetched unless they are in the cache.

    Raises ``UsageError`` for an id or revision that does not exist, ``EnvironmentProblem`` when the Hub cannot be
    reached or refuses, ``BuildError`` when the disk is full or the repository holds no safetensors.
    """
    if not is_id(repo):
        raise UsageError(f"{repo!r} is not an id of the Hugging Face Hub", fix="an id is OWNER/NAME")
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise UsageError(f"the revision {revision!r} is neither a branch, a tag nor a commit")
    require("export", f"the download of {repo}", "huggingface_hub")
    import huggingface_hub

    with _typed_errors(repo, revision):
        commit = huggingface_hub.HfApi().resolve_revision(repo, revision=revision)
        needed = _missing_bytes(repo, commit, files)
        with (progress or Quiet()).step(f"download {repo}" if needed else f"find {repo}", needed) as advance:
            folder = huggingface_hub.snapshot_download(
                repo,
                revision=commit,
                allow_patterns=list(files),
                ignore_patterns=[_BELOW],
                tqdm_class=_bars(advance),
            )
    return Snapshot(Path(folder), commit.resolved)


def _missing_bytes(repo: str, commit: Any, files: Sequence[str]) -> int | None:
    """Return what is still to be fetched; None when the Hub is not to be asked. Refuses what cannot end well."""
    import huggingface_hub as hub
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        listing: list[Any] = hub.get_cached_repo_tree(repo, revision=commit)
    except CachedRepoTreeNotFoundError:
        if hub.is_offline_mode():
            return None
        listing = list(hub.HfApi().list_repo_tree(repo, revision=commit.resolved))
    sizes = {
        entry.path: int(entry.size)
        for entry in listing
        if hasattr(entry, "size") and "/" not in entry.path and any(fnmatch(entry.path, form) for form in files)
    }
    lacking = [CONFIG[0]] if CONFIG[0] not in sizes else []
    if _WEIGHTS in files and not any(name.endswith(".safetensors") for name in sizes):
        lacking.append("weights in safetensors")
    if lacking:
        raise BuildError(
            f"{repo} has no {' and no '.join(lacking)}",
            why="other formats of weights may hold code and are never fetched",
            fix="choose a repository that has them",
        )
    missing = {
        name: count
        for name, count in sizes.items()
        if not isinstance(hub.try_to_load_from_cache(repo, name, revision=commit.resolved), str)
    }
    needed, free = sum(missing.values()), _free_bytes()
    if needed > free:
        raise _full(repo, f"{size(needed)} are to be downloaded, {size(free)} are free")
    return needed


def _bars(advance: Advance) -> Any:
    """The library's progress bar, which shows nothing itself and tells ``advance`` what arrives on the disk."""
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts = kwargs.get("name") == _BYTES_ON_DISK
            super().__init__(*args, **kwargs | {"disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            if self._counts:
                advance(int(n or 0))
            return None

    return Silent


@contextmanager
def _typed_errors(repo: str, revision: str | None) -> Iterator[None]:
    """Whatever the library raises, as an error of ours."""
    try:
        yield
    except PeagleError:
        raise
    except Exception as error:
        raise _typed(error, repo, revision) from error


def _typed(error: BaseException, repo: str, revision: str | None) -> PeagleError:
    from huggingface_hub import constants, errors, is_offline_mode

    page = f"{constants.ENDPOINT}/{repo}"
    if isinstance(error, errors.GatedRepoError):
        return EnvironmentProblem(
            f"access to {repo} has to be asked for",
            why="its owner lets only those download it who accept the licence",
            fix=f"accept the licence at {page}, and set HF_TOKEN to a token of that account",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return UsageError(
            f"{repo} is not on the Hugging Face Hub, or is private",
            why=f"{constants.ENDPOINT} does not show it to this user, and there is no folder of that name here",
            fix="check the spelling; for a private one set HF_TOKEN",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return UsageError(
            f"{repo} has no revision {revision or constants.DEFAULT_REVISION}",
            why="it is no branch, tag or commit there",
            fix=f"{page}/commits/main lists them",
        )
    if isinstance(error, errors.HfHubHTTPError):
        return Unreachable(
            f"{constants.ENDPOINT} does not hand out {repo}",
            why=f"it answered {error.response.status_code}: {_one_line(error)}",
            fix="401 and 403 mean the token in HF_TOKEN; for anything else, try again later",
        )
    if isinstance(error, OSError) and error.errno in _FULL:
        return _full(repo, f"{size(_free_bytes())} are free")
    if isinstance(error, OSError) and error.errno in _REFUSED:
        return EnvironmentProblem(
            f"cannot write to {error.filename or constants.HF_HUB_CACHE}",
            why=_one_line(error),
            fix="point HF_HOME to a folder that can be written to",
        )
    if is_offline_mode():
        return Unreachable(
            f"{repo} is not in the cache, or not all of it",
            why=f"HF_HUB_OFFLINE forbids a download; the cache is {constants.HF_HUB_CACHE}",
            fix="unset HF_HUB_OFFLINE once, or pass the folder of a checkpoint",
        )
    cause = error.__cause__
    if cause is not None and isinstance(error, (errors.LocalEntryNotFoundError, errors.RevisionResolutionError)):
        return _typed(cause, repo, revision)
    return Unreachable(
        f"{repo} could not be downloaded from {constants.ENDPOINT}",
        why=f"{type(error).__name__}: {_one_line(error)}",
        fix=f"check the network (HTTPS_PROXY, HF_ENDPOINT), then {_RESUME}; or pass the folder of a checkpoint",
    )


def _full(repo: str, why: str) -> BuildError:
    from huggingface_hub import constants

    return BuildError(
        f"the disk of {constants.HF_HUB_CACHE} has no room for {repo}",
        why=why,
        fix=f"free some space, or point HF_HOME to another disk, then {_RESUME}",
    )


def _free_bytes() -> int:
    from huggingface_hub import constants

    return free_bytes(Path(constants.HF_HUB_CACHE).expanduser().absolute())


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
