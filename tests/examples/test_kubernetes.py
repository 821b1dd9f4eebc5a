"""The Kubernetes example: valid API objects, and a server that supports what they require."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

msgspec = pytest.importorskip("msgspec", reason="the extra serve is not installed")

FILE = Path(__file__).parents[2] / "examples" / "deploy" / "kubernetes.yaml"
MODULES = {"v1": "core_v1", "apps/v1": "apps_v1", "policy/v1": "policy_v1"}
Object = dict[str, Any]


@pytest.fixture(scope="module")
def objects() -> dict[str, Object]:
    """The objects of the file by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(FILE.read_text())}


@pytest.fixture(scope="module")
def container(objects: dict[str, Object]) -> Object:
    """The one container of a pod."""
    (only,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    found: Object = only
    return found


@pytest.fixture
def schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import the package of the API's types without its client, because they are dataclasses."""
    base: Any = ModuleType("lightkube.core.schema")
    base.DictMixin, base.field, base.dataclass = object, dataclasses.field, dataclasses.dataclass
    monkeypatch.setitem(sys.modules, "lightkube.core", ModuleType("lightkube.core"))
    monkeypatch.setitem(sys.modules, "lightkube.core.schema", base)
    pytest.importorskip("lightkube.models", reason="lightkube-models is not installed (make venv)")


def _complaints(given: Any, read: Any, path: str) -> Iterator[str]:
    """Return the fields of an object that the API does not know."""
    if isinstance(given, dict):
        for key, value in given.items():
            if key in read:
                yield from _complaints(value, read[key], f"{path}.{key}")
            else:
                yield f"{path}.{key} is not known"
    elif isinstance(given, list):
        for i, (one, other) in enumerate(zip(given, read, strict=True)):
            yield from _complaints(one, other, f"{path}[{i}]")


def _check(given: Object) -> list[str]:
    module = importlib.import_module(f"lightkube.models.{MODULES[given['apiVersion']]}")
    try:
        read = msgspec.convert(given, getattr(module, given["kind"]))
    except msgspec.ValidationError as error:
        return [str(error)]
    return [*_complaints(given, msgspec.to_builtins(read), given["kind"])]


@pytest.mark.usefixtures("schema")
def test_every_object_is_as_the_api_has_it(objects: dict[str, Object]) -> None:
    assert {*objects} == {"PersistentVolumeClaim", "Deployment", "Service", "PodDisruptionBudget"}
    assert [complaint for each in objects.values() for complaint in _check(each)] == []


@pytest.mark.usefixtures("schema")
@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("replicas: 2", "replicas: two"),
        ("      containers:", "      container:"),
        ("readOnly: true}", "readonly: true}"),
        ("        - name: serve", "        - names: serve"),
        ("sleep: {seconds: 5}", "sleep: {second: 5}"),
    ],
)
def test_a_mistake_is_found(line: str, instead: str) -> None:
    text = FILE.read_text()
    assert line in text
    wrong = [*yaml.safe_load_all(text.replace(line, instead))]
    assert [complaint for each in wrong for complaint in _check(each)] != []


def test_the_parts_know_each_other(objects: dict[str, Object], container: Object) -> None:
    pod = objects["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert objects["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["Service"]["spec"]["selector"] == labels
    assert objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    (port,) = container["ports"]
    assert objects["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    (volume,), (mount,) = pod["spec"]["volumes"], container["volumeMounts"]
    claim = volume["persistentVolumeClaim"]
    assert (volume["name"], claim["claimName"]) == (mount["name"], objects["PersistentVolumeClaim"]["metadata"]["name"])
    assert claim["readOnly"] is True
    assert mount["readOnly"] is True


def test_server_supports_the_manifest(objects: dict[str, Object], container: Object) -> None:
    from typer.main import get_command

    from peagle.compiler.verbs.program import app
    from peagle.engines.serving.health import CANARY_SECONDS

    command: Any = get_command(app)
    options = {flag: param for param in command.commands["serve"].params for flag in param.opts}
    verb, engine, *arguments = container["args"]
    assert verb == "serve"
    assert engine == container["volumeMounts"][0]["mountPath"]
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert {*given} <= {*options}
    assert container["ports"][0]["containerPort"] == options["--port"].default
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}
        assert container[probe]["timeoutSeconds"] > CANARY_SECONDS
    waits = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = objects["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > waits + float(given["--drain-timeout"])
