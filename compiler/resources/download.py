"""The download that a build starts with: its size, and whether it is possible."""

from __future__ import annotations

import os
from pathlib import Path

from ...plugins.errors import EnvironmentProblem
from ..checkpoints.known_pairs import HubRepo
from ..checkpoints.resolve_names import known_pair, target_source
from ..request.request import ModelRef
from ..store.atomic_files import free_bytes
from .check import DOWNLOAD, Need
from .gpu_memory import download_bytes

UNKNOWN_SIZE = "the size of the download is unknown and not included in the disk estimate"
_TRUE = ("1", "on", "yes", "true")  # as huggingface_hub reads its variables


def download_need(model: ModelRef) -> Need | None:
    """Return the disk space for the part of the target that is not in the Hub's cache yet.

    None if nothing is downloaded from the Hub, or if the registry does not know the size (``has_unknown_size``).
    """
    source, pair = target_source(model.model, model.revision), known_pair(model.model)
    if pair is None or not isinstance(source, HubRepo):
        return None
    cache = _hub_cache()
    count = max(download_bytes(pair) - _cached_bytes(cache, source.repo), 0)
    return Need(DOWNLOAD, count, count, "as published", str(cache), free_bytes(cache),
                instead="set HF_HOME to a folder on a larger disk")  # fmt: skip


def has_unknown_size(model: ModelRef) -> bool:
    """Return True if the target comes from the Hub and the registry does not know its size."""
    return isinstance(target_source(model.model, model.revision), HubRepo) and known_pair(model.model) is None


def forbidden(model: ModelRef, need: Need | None) -> EnvironmentProblem | None:
    """Return the error of a build that has to download although ``HF_HUB_OFFLINE`` forbids it."""
    source = target_source(model.model, model.revision)
    is_offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE
    if not is_offline or need is None or not need.bytes or not isinstance(source, HubRepo) or source.otherwise:
        return None
    return EnvironmentProblem(
        f"{source.repo} is only partly in the cache",
        why=f"HF_HUB_OFFLINE disables downloads; the cache is {need.where}",
        fix="unset HF_HUB_OFFLINE for one run, or pass the folder of a checkpoint",
    )


def _hub_cache() -> Path:
    """Return the folder that checkpoints are downloaded to, by the rules of the Hub's own library."""
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser().absolute()


def _cached_bytes(cache: Path, repo: str) -> int:
    """Return the bytes of a repository in the Hub's cache, over all revisions and including unfinished files."""
    blobs = cache / f"models--{repo.replace('/', '--')}" / "blobs"
    return sum(path.stat().st_size for path in blobs.glob("*") if path.is_file())
