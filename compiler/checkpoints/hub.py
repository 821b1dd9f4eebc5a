"""Checkpoints from the Hugging Face Hub: download only the files that a build reads, into the Hub's own cache.

``HF_HOME``, ``HF_TOKEN``, ``HF_ENDPOINT`` and ``HF_HUB_OFFLINE`` have their usual meaning. Cached files are used
without a network; an interrupted download resumes with the incomplete files.
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
from .json_files import MODELOPT_CONFIG

CONFIG = ("config.json",)
_WEIGHTS = "*.safetensors"
CHECKPOINT = (
    *CONFIG,
    _WEIGHTS,
    "*.safetensors.index.json",
    "generation_config.json",
    MODELOPT_CONFIG,
    "special_tokens_map.json",
    "tokenizer*.json",
    "chat_template.json",
    "*.jinja",
)
_BELOW = "*/*"  # sub-folders such as original/ and metal/ hold other formats of the same weights
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_ID = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]{0,199}")
_BYTES_ON_DISK = "huggingface_hub.snapshot_download"  # the library's name of the progress bar for them
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_RESUME = "run the same command again: completed files are kept"


class Unreachable(EnvironmentProblem):
    """The Hub cannot be reached, and the checkpoint is not in the cache (exit code 3)."""


@dataclass(frozen=True)
class Snapshot:
    """The files of one commit in a local folder."""

    folder: Path
    commit: str


def is_id(name: str) -> bool:
    """Return True if ``name`` has the form ``owner/name`` of a Hub repository."""
    return bool(_ID.fullmatch(name)) and "--" not in name and ".." not in name and not name.endswith(".git")


def download(
    repo: str,
    revision: str | None = None,
    *,
    files: Sequence[str] = CHECKPOINT,
    progress: Progress | None = None,
) -> Snapshot:
    """Download the files of ``repo`` that match ``files`` at a branch, tag or commit, unless they are cached.

    Raises ``UsageError`` for an id or revision that does not exist, ``EnvironmentProblem`` if the Hub cannot be
    reached or denies access, ``BuildError`` if the disk is full or the repository has no safetensors.
    """
    if not is_id(repo):
        raise UsageError(f"{repo!r} is not a Hugging Face Hub id", fix="use an id such as OWNER/NAME")
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise UsageError(f"{revision!r} is not a branch, tag or commit", fix="pass an existing branch, tag or commit")
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
    """Return the bytes left to download; None if offline. Raises early if the download cannot succeed."""
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
        if hasattr(entry, "size") and "/" not in entry.path and any(fnmatch(entry.path, pattern) for pattern in files)
    }
    absent = [CONFIG[0]] if CONFIG[0] not in sizes else []
    if _WEIGHTS in files and not any(name.endswith(".safetensors") for name in sizes):
        absent.append("weights in safetensors")
    if absent:
        raise BuildError(
            f"{repo} has no {' and no '.join(absent)}",
            why="the configuration is required, and only weights in safetensors are downloaded: other formats can "
            "execute code",
            fix="choose a repository that has these files",
        )
    missing = {
        name: count
        for name, count in sizes.items()
        if not isinstance(hub.try_to_load_from_cache(repo, name, revision=commit.resolved), str)
    }
    needed, free = sum(missing.values()), _free_bytes()
    if needed > free:
        raise _full(repo, f"the download needs {size(needed)}, but only {size(free)} are free")
    return needed


def _bars(advance: Advance) -> Any:
    """Create a silent progress bar for the library that reports bytes on disk to ``advance``."""
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
    """Convert the library's exceptions to this package's errors."""
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
            f"access to {repo} is restricted",
            why="the owner of the repository requires users to accept the license",
            fix=f"accept the license at {page}, and set HF_TOKEN to an access token of that account",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return UsageError(
            f"{repo} is not on the Hugging Face Hub, or is private",
            why=f"{constants.ENDPOINT} does not show the repository to this user, and no local folder has this name",
            fix="check the spelling; for a private repository, set HF_TOKEN",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return UsageError(
            f"{repo} has no revision {revision or constants.DEFAULT_REVISION}",
            why="the repository has no such branch, tag or commit",
            fix=f"choose one of the commits at {page}/commits/main",
        )
    if isinstance(error, errors.HfHubHTTPError):
        return Unreachable(
            f"{constants.ENDPOINT} denies access to {repo}",
            why=f"the server returned HTTP {error.response.status_code}: {_one_line(error)}",
            fix="for 401 and 403, check the token in HF_TOKEN; otherwise, try again later",
        )
    if isinstance(error, OSError) and error.errno in _FULL:
        return _full(repo, f"only {size(_free_bytes())} are free")
    if isinstance(error, OSError) and error.errno in _REFUSED:
        return EnvironmentProblem(
            f"cannot write to {error.filename or constants.HF_HUB_CACHE}",
            why=_one_line(error),
            fix="set HF_HOME to a writable folder",
        )
    if is_offline_mode():
        return Unreachable(
            f"{repo} is only partly in the cache",
            why=f"HF_HUB_OFFLINE disables downloads; the cache is {constants.HF_HUB_CACHE}",
            fix="unset HF_HUB_OFFLINE for one run, or pass the folder of a checkpoint",
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
        f"the disk that contains {constants.HF_HUB_CACHE} has no space for {repo}",
        why=why,
        fix=f"free some space, or set HF_HOME to a folder on another disk, then {_RESUME}",
    )


def _free_bytes() -> int:
    from huggingface_hub import constants

    return free_bytes(Path(constants.HF_HUB_CACHE).expanduser().absolute())


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
