"""Configuration and tokenizer files of a checkpoint folder, generated from a GGUF header and kept as a stage."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...store.stage_origin import StageOrigin
from ...store.stages import Stage, StageStore
from .header import GgufHeader
from .model import family_and_naming
from .tokenizer import end_ids, settings, tokenizer_json

_TEMPLATE = "tokenizer.chat_template"


def side_files(header: GgufHeader, config: Mapping[str, Any]) -> dict[str, str]:
    """Map file names to contents. Raises ``BuildError`` for a tokenizer that cannot be read."""
    template, eos_ids = header.metadata.get(_TEMPLATE), end_ids(header, family_and_naming(header)[1].end_keys)
    files = {
        "config.json": _json(config),
        "tokenizer.json": tokenizer_json(header),
        "tokenizer_config.json": _json(settings(header)),
        "generation_config.json": _json(
            {"eos_token_id": eos_ids[0] if len(eos_ids) == 1 else eos_ids} if eos_ids else {}
        ),
    }
    return files | ({"chat_template.jinja": template} if isinstance(template, str) and template else {})


def keep_side_files(header: GgufHeader, config: Mapping[str, Any]) -> Stage:
    """Return the stage with these files, from the user's store; rebuilt when the file or the code changes."""

    def make(folder: Path) -> None:
        for name, content in side_files(header, config).items():
            (folder / name).write_text(content, encoding="utf-8", newline="")

    metadata = {key: value for key, value in header.metadata.items() if key.startswith("tokenizer.")}
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()
    store = StageStore.default()
    return StageStore(store.root, stage_origin=StageOrigin("build", header.file.name)).run(
        "gguf", [digest, config], make
    )


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
