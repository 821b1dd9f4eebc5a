"""Start llama.cpp's server as a peer of `peagle-compile bench`, on the GGUF file that an engine was built from.

    python benchmarks/llama_server.py ENGINE --port 8080
    peagle-compile bench ENGINE --peer llama.cpp=http://127.0.0.1:8080

The server is compiled once, in minutes, from the llama.cpp in the source archive of llama-cpp-python, in the version of
peers/llama-cpp.txt; this needs cmake, ninja and a C++ compiler. It has one slot and no prompt cache, as the engines in
a benchmark. Further arguments are options of the server.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from peers.environments import ROOT
from peers.llama_cpp_source import requirement, unpack

from peagle.engines.folder.manifest import Manifest

# A server alone: no web page, no TLS, and every library inside the program.
OPTIONS = (
    "CMAKE_BUILD_TYPE=Release", "BUILD_SHARED_LIBS=OFF", "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF",
    "LLAMA_BUILD_APP=OFF", "LLAMA_BUILD_UI=OFF", "LLAMA_USE_PREBUILT_UI=OFF", "LLAMA_OPENSSL=OFF",
)  # fmt: skip


def built(root: Path) -> Path:
    """Return the server's program in ``root``, compiling it if needed. Raises ``CalledProcessError``."""
    work = root / f"llama-server-{requirement().partition('==')[2]}"
    program = work / "llama-server"
    if not program.is_file():
        work.mkdir(parents=True, exist_ok=True)
        print(f"Compiling llama.cpp's server into {work} (minutes) ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=work) as folder:
            source = unpack(Path(folder))
            build = Path(folder) / "build"
            flags = [f"-D{option}" for option in OPTIONS]
            subprocess.run(["cmake", "-G", "Ninja", "-S", source, "-B", build, *flags], check=True, stdout=sys.stderr)
            subprocess.run(["cmake", "--build", build, "--target", "llama-server"], check=True, stdout=sys.stderr)
            (build / "bin" / "llama-server").rename(program)
    return program


def main() -> None:
    """Compile what is missing, and become the server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: %(default)s")
    parser.add_argument("--port", type=int, default=8080, help="default: %(default)s")
    arguments, given = parser.parse_known_args()
    source = Path(Manifest.read(arguments.engine).target.origin.source)
    if not source.is_file():
        raise SystemExit(f"llama.cpp needs a GGUF file, but {arguments.engine} was built from {source}")
    program = built(ROOT)
    threads, port = str(arguments.threads), str(arguments.port)
    fixed = ["--threads", threads, "--parallel", "1", "--no-cache-prompt", "--port", port, "--alias", source.stem]
    os.execv(program, [str(program), "-m", str(source), *fixed, *given])


if __name__ == "__main__":
    main()
