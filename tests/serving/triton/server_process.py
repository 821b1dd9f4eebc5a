"""A real Triton Inference Server, started on this machine's loopback and stopped so that nothing is left."""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_process import SECONDS, TritonServer

ROOT = Path(__file__).resolve().parents[3]
_CRASHES = re.compile(r"Signal \((?!15)|terminate called|Non-graceful|not healthy")


def installed() -> Path:
    """The server's launcher, as `make triton-server` makes it; its clients can be imported from now on."""
    from tools import triton_server

    launcher = triton_server.make(ROOT / "build" / "triton")
    (packages,) = launcher.parent.glob("venv/lib/python3.*/site-packages")
    sys.path.append(str(packages))  # behind everything else: of our own environment it has only what that lacks
    return launcher


@dataclass(frozen=True)
class Answer:
    """What came back: the status, and the JSON of the body, or of each event of a stream."""

    status: int
    events: list[dict[str, Any]]

    @property
    def text(self) -> str:
        """All text of an answer."""
        return "".join(event["text_output"] for event in self.events)


class TritonProcess(TritonServer):
    """The server for tests: it must end well and leave nothing, and what it answers is read as JSON."""

    def __enter__(self) -> TritonProcess:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        died = self.process.poll()
        self.stop()
        if kind is None:
            assert died is None, f"the server died: {self.log()[-3000:]}"
            assert self.code == 0, f"the server ended with {self.code}: {self.log()[-3000:]}"
            assert self.left == [], "it left shared memory"
            assert not _CRASHES.search(self.log()), self.log()[-3000:]

    def get(self, path: str) -> Answer:
        """``GET`` of the HTTP port."""
        return self._call(path, None)

    def post(self, path: str, body: Any) -> Answer:
        """``POST`` of a JSON body, or of bytes as they are."""
        return self._call(path, body if isinstance(body, bytes) else json.dumps(body).encode())

    def generate(self, model: str, **fields: Any) -> Answer:
        """An answer as a whole."""
        return self.post(f"/v2/models/{model}/generate", fields)

    def stream(self, model: str, **fields: Any) -> Answer:
        """An answer in pieces."""
        return self.post(f"/v2/models/{model}/generate_stream", {"stream": True, **fields})

    def events(self, model: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """The pieces of an answer as they come; closing the iterator closes the connection."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http}/v2/models/{model}/generate_stream",
            data=json.dumps({"stream": True, **fields}).encode(),
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            for line in response:
                if line.startswith(b"data:"):
                    yield json.loads(line[5:])

    def load(self, model: str) -> Answer:
        """Ask for a model to be loaded, or loaded again."""
        return self.post(f"/v2/repository/models/{model}/load", {})

    def load_over_grpc(self, model: str) -> None:
        """Load a model while streams run. A load over HTTP blocks an HTTP thread, whose streams then lose pieces."""
        import tritonclient.grpc as grpc

        with grpc.InferenceServerClient(f"127.0.0.1:{self.grpc}") as client:
            client.load_model(model, client_timeout=2 * SECONDS)

    def unload(self, model: str) -> Answer:
        """Ask for a model to be unloaded, and wait until it is."""
        answer = self.post(f"/v2/repository/models/{model}/unload", {})
        self.wait_until(lambda: self.get(f"/v2/models/{model}/ready").status != 200)
        return answer

    def metrics(self) -> dict[str, float]:
        """Every series by its name and labels, as the text has them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=SECONDS) as response:
            lines = response.read().decode().splitlines()
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines if not x.startswith("#"))}

    def counted(self, name: str, model: str, **label: str) -> float:
        """The value of a series of ours, with one label at most beside the model's, 0 where there is none yet."""
        labels = {**label, "model_name": model, "version": "1"}
        written = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        return self.metrics().get(f"vllm:{name}{{{written}}}", 0.0)

    def memory(self) -> int:
        """Bytes of memory of the server and of the processes of its models; what is shared counts once."""
        found = 0
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.getpgid(int(folder.name)) == self.process.pid:
                    found += 1024 * int(re.findall(r"^Pss: +(\d+) kB$", (folder / "smaps_rollup").read_text(), re.M)[0])
            except OSError:  # it ended meanwhile
                continue
        return found

    def _call(self, path: str, data: bytes | None) -> Answer:
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}{path}", data=data)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                return Answer(response.status, _events(response.read()))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _events(error.read()))


def _events(body: bytes) -> list[dict[str, Any]]:
    text = body.decode()
    pieces = re.findall(r"^data: ?(.*)$", text, re.MULTILINE) or [text] * bool(text.strip())
    return [json.loads(piece) for piece in pieces]
