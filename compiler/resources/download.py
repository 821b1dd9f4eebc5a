"""The download that a build begins with: how large it is, and whether anything here already stops it."""

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

UNKNOWN_SIZE = "the size of the download is not known, so the disk that it takes is not counted"
_TRUE = ("1", "on", "yes", "true")  # as huggingface_hub reads its variables


def download_need(model: ModelRef) -> Need | None:
    """The disk for the part of the target that is not in the Hub's cache yet.

    None where nothing is downloaded from the Hub, or where the registry does not know the size (``has_unknown_size``).
    """
    source, pair = target_source(model.model, model.revision), known_pair(model.model)
    if pair is None or not isinstance(source, HubRepo):
        return None
    cache = _hub_cache()
    count = max(download_bytes(pair) - _cached_bytes(cache, source.repo), 0)
    return Need(DOWNLOAD, count, count, "as published", str(cache), free_bytes(cache),
                instead="point HF_HOME to a larger disk")  # fmt: skip


def has_unknown_size(model: ModelRef) -> bool:
    """Whether the target comes from the Hub and the registry does not know how large it is."""
    return isinstance(target_source(model.model, model.revision), HubRepo) and known_pair(model.model) is None


def forbidden(model: ModelRef, need: Need | None) -> EnvironmentProblem | None:
    """The error of a build that has to download where ``HF_HUB_OFFLINE`` forbids it."""
    source = target_source(model.model, model.revision)
    is_offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE
    if not is_offline or need is None or not need.bytes or not isinstance(source, HubRepo) or source.otherwise:
        return None
    return EnvironmentProblem(
        f"{source.repo} is not in the cache, or not all of it",
        why=f"HF_HUB_OFFLINE forbids a download; the cache is {need.where}",
        fix="unset HF_HUB_OFFLINE once, or pass the folder of a checkpoint",
    )


def _hub_cache() -> Path:
    """The folder that checkpoints are downloaded to, as the Hub's own library finds it."""
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser().absolute()


def _cached_bytes(cache: Path, repo: str) -> int:
    """The bytes that the Hub's cache holds of a repository, of whatever revision, unfinished files included."""
    blobs = cache / f"models--{repo.replace('/', '--')}" / "blobs"
    return sum(path.stat().st_size for path in blobs.glob("*") if path.is_file())
