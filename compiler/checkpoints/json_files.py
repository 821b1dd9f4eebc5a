"""Read the JSON files of a checkpoint within bounded time and memory, whatever the file contains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...plugins.errors import BuildError
from ...plugins.regular_files import read_regular

MODELOPT_CONFIG = "hf_quant_config.json"  # written by ModelOpt beside config.json
MAX_BYTES = 100_000_000
_MAX_ITEMS = 2_000_000  # brackets and commas: about 200 000 tensors. Each may cost Python 100 bytes.


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """Read a JSON object from a checkpoint's file; ``hint`` completes the error if the file is missing."""
    try:
        content = parse_json(read_regular(path, MAX_BYTES))
    except FileNotFoundError:
        raise BuildError(
            f"{path.parent} has no {path.name}", why=hint, fix="pass the folder of the checkpoint"
        ) from None
    except OSError as error:
        raise BuildError(f"cannot read {path}", why=str(error), fix="check the file's permissions") from None
    except (ValueError, RecursionError) as error:
        raise BuildError(f"{path} is not valid JSON", why=str(error), fix="download the file again") from None
    if not isinstance(content, dict):
        raise BuildError(f"{path} does not contain a JSON object", fix="download the file again")
    return content


def parse_json(raw: bytes, pairs: Callable[[list[tuple[str, Any]]], Any] = dict) -> Any:
    """Parse JSON of bounded size. Raises ``ValueError`` or ``RecursionError``."""
    if sum(map(raw.count, (b"{", b"[", b","))) > _MAX_ITEMS:
        raise ValueError(f"the file has more than {_MAX_ITEMS} items")
    return json.loads(raw, object_pairs_hook=pairs)
