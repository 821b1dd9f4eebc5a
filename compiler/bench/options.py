"""Options of ``bench``, named like its flags, and the command line that repeats them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...engines.draft_options import is_auto
from ...engines.policy.drafts_per_round import NumSpeculativeTokens
from ...engines.requests.arguments import integer, number
from ...plugins.errors import UsageError
from .server import ENDPOINTS, BenchServer
from .workloads import WORKLOADS

_MEASURED = ("num_speculative_tokens", "concurrency", "temperature")  # lists of which every value is measured
_OF_ENGINES = ("draft", "num_speculative_tokens", "threads")  # a server has its own


@dataclass(frozen=True)
class BenchOptions:
    """Options of ``bench``; ``peagle-compile bench --help`` describes them."""

    engines: tuple[Path, ...] = ()
    workload: str | None = None
    prompts: Path | None = None
    num_prompts: int = 20
    repeats: int = 1
    max_tokens: int = 128
    draft: tuple[str, ...] = ()
    num_speculative_tokens: tuple[NumSpeculativeTokens, ...] = ()
    concurrency: tuple[int, ...] = (1,)
    temperature: tuple[float, ...] = (0.0,)
    seed: int = 0
    ignore_eos: bool = False
    price_per_hour: float | None = None
    url: str | None = None
    peer: tuple[str, ...] = ()
    endpoint: str | None = None
    api_key: str | None = None
    threads: int | None = None

    @property
    def workload_name(self) -> str:
        """The workload, ``chat`` unless one is named."""
        return self.workload or "chat"

    @property
    def servers(self) -> dict[str, BenchServer]:
        """The peers by name. Raises ``UsageError`` for a text that is not NAME=URL, and for a name given twice."""
        found: dict[str, BenchServer] = {}
        for text in self.peer:
            name, _, url = text.partition("=")
            if not url or not name.strip() or "://" in name:
                raise UsageError(
                    f"--peer {text} is not NAME=URL",
                    why="the tables show each server under the name that you give it",
                    fix="use NAME=URL, for example --peer llama.cpp=http://127.0.0.1:8080",
                )
            if name in found:
                raise UsageError(f"--peer uses the name {name} twice", fix="give every peer a unique name")
            found[name] = self.server(url)
        return found

    def server(self, url: str) -> BenchServer:
        """Return the server at a URL. Raises ``UsageError`` for an invalid one."""
        endpoint = self.endpoint or ("chat" if self.url else "completions")
        return BenchServer(url, endpoint, {}, self.api_key)

    def check(self) -> None:
        """Raise ``UsageError`` for options that are invalid for every engine, or contradict each other."""
        if bool(self.engines) == (self.url is not None):
            raise UsageError(
                "neither ENGINE nor --url was given" if not self.engines else "ENGINE and --url cannot be combined",
                why="bench measures either engines or the server at --url",
                fix="pass an engine folder, or --url http://HOST:PORT",
            )
        for name in ("num_prompts", "repeats", "max_tokens"):
            integer(_flag(name), getattr(self, name), 1)
        for concurrency in self.concurrency or (0,):
            integer("--concurrency", concurrency, 1)
        for k in self.num_speculative_tokens:
            if not is_auto(k):
                integer("--num-speculative-tokens", k, 0)
        integer("--seed", self.seed, 0)
        for temperature in self.temperature or (None,):
            number("--temperature", temperature, 0)
        for name in _MEASURED:
            _require_distinct(_flag(name), getattr(self, name))
        if self.price_per_hour is not None:
            number("--price-per-hour", self.price_per_hour, 0)
        if self.workload is not None and self.prompts is not None:
            raise UsageError("--workload and --prompts cannot be combined", fix="omit one of them")
        if self.workload_name not in WORKLOADS:
            raise UsageError(f"unknown --workload {self.workload}", fix=f"use one of {', '.join(WORKLOADS)}")
        if self.endpoint is not None and self.endpoint not in ENDPOINTS:
            raise UsageError(f"unknown --endpoint {self.endpoint}", fix=f"use one of {', '.join(ENDPOINTS)}")
        if self.servers and self.url is not None:
            raise UsageError(
                "--peer and --url cannot be combined",
                why="--peer servers take turns with the engines, whereas --url measures a single server",
                fix="pass an engine folder, or measure each server with --url",
            )
        if self.url is not None:
            self._check_server()

    def _check_server(self) -> None:
        default = BenchOptions()
        for name in _OF_ENGINES:
            if getattr(self, name) != getattr(default, name):
                raise UsageError(
                    f"{_flag(name)} and --url cannot be combined",
                    why="the server at --url decodes with its own settings",
                    fix=f"omit {_flag(name)}, or measure an engine folder",
                )
        if self.prompts is None and WORKLOADS[self.workload_name].questions is None:
            raise UsageError(
                f"--workload {self.workload_name} and --url cannot be combined",
                why="the prompts of this workload are token ids, which only the tokenizer of an engine can create",
                fix="choose another workload with --workload, or pass --prompts FILE",
            )

    @property
    def command(self) -> str:
        """The command line with these options, without secrets and without the files to write."""
        default = BenchOptions()
        words = ["peagle-compile", "bench", *map(str, self.engines)]
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in ("engines", "api_key") or (
                value == getattr(default, each.name) and each.name != "workload"
            ):
                continue
            words += _words(each.name, value)
        return shlex.join(words)


def _words(name: str, value: Any) -> list[str]:
    if value is True:
        return [_flag(name)]
    if value is None:
        return []
    values = value if isinstance(value, tuple) else (value,)
    return [_flag(name), ",".join(map(_text, values))]


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _require_distinct(flag: str, values: tuple[object, ...]) -> None:
    """Raise ``UsageError`` for a list in which a value occurs twice."""
    for at, value in enumerate(values):
        if value in values[:at]:
            raise UsageError(f"{flag} has the value {value} twice", fix="give every value once")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
