"""The text files of a model repository, filled in from templates."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from string import Template

from ....engines.folder.manifest import Manifest
from ....engines.serving.triton.model_settings import FORMAT
from .options import RepositoryOptions

ENGINE = "engine"  # the folder of the engine, beside model.py


def model_folders(options: RepositoryOptions, manifest: Manifest) -> dict[str, dict[str, str]]:
    """Return the text files of every model by path in its folder; the first model is the one that holds the engine."""
    values = {
        "name": options.name,
        "repository_format": FORMAT,
        "engine_dir": options.path if options.placing == "path" else ENGINE,
        "max_batch_size": options.max_batch_size,
        "max_queue_size": options.max_queue_size,
        "threads": options.threads,
        "request_timeout": f"{options.request_timeout:g}",
        "instances": options.instances,
        "places": options.instances * max(1, len(options.gpus)),
        "kind": options.kind(manifest),
        "draft": options.draft,
        "drafters": ",".join(options.drafters),
    }
    return {
        options.name: _model("engine", values, module="engine_model", model="EngineModel"),
        f"{options.name}_tokens": _model("tokens", values, module="token_model", model="TokenModel"),
        f"{options.name}_whole": _model("whole", values, module="whole_model", model="WholeModel"),
    }


def _model(template: str, values: Mapping[str, object], **shim: str) -> dict[str, str]:
    return {
        "config.pbtxt": _filled(f"{template}.pbtxt.template", values),
        "1/model.py": _filled("model.py.template", shim),
    }


def _filled(name: str, values: Mapping[str, object]) -> str:
    return Template((files(__package__) / name).read_text(encoding="utf-8")).substitute(values)
