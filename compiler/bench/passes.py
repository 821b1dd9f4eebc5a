"""Cost of a pass of the target by number of columns, compared with the time to read its weights from memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...engines.folder.manifest import Manifest
from ..console.printing import size
from .measure import Level, named_temperature
from .modes import DecodingMode
from .origin import in_threads
from .statistics import Spread

_MIN = 64 * 2**20  # bytes to read: less says more about the start of threads than about memory


@dataclass(frozen=True)
class MemoryFloor:
    """The measured speed of memory in bytes per second, and the bytes of weights that passes of each engine read.

    ``pass_bytes`` has those of passes over 1, 2, ... columns, by engine; none for an engine that does not report them.
    """

    speed: float
    threads: int
    pass_bytes: tuple[tuple[int, ...], ...]

    @classmethod
    def measure(cls, folders: Sequence[Path], manifests: Sequence[Manifest], threads: int | None) -> MemoryFloor | None:
        """Measure in about a second, with the threads of the first engine; None if no engine tells its bytes.

        The array is as large as the weights, up to a size that no cache holds, because weights that fit into a cache
        are read faster. The passes of engines for GPUs are not timed, so there is nothing to measure for them.
        """
        from ...engines.backends.onnxruntime.loaded_graphs import default_threads
        from ..hardware.cpu_probe import LARGE, memory_speed
        from ..pipeline.reports.engine_contents import pass_bytes

        read = tuple(tuple(pass_bytes(folder)) for folder in folders)
        if not any(read) or manifests[0].backend.gpus:
            return None
        count = default_threads(manifests[0]) if threads is None else threads
        array = min(max(_MIN, *(counts[0] for counts in read if counts)), LARGE)
        return cls(memory_speed(count, array), count, read)

    @property
    def in_words(self) -> str:
        """The speed, and the least time of a plain pass."""
        plain = next(at for at, counts in enumerate(self.pass_bytes) if counts)
        return (
            f"{self.speed / 1e9:.1f} GB/s read by {in_threads(self.threads)}; a plain pass reads "
            f"{size(self.pass_bytes[plain][0])} of weights, which takes at least {self.floor(plain, 1):.2f} ms"
        )

    def floor(self, engine: int, columns: int) -> float | None:
        """Return the milliseconds in which memory gives the weights of a pass; None if they are unknown."""
        counts = self.pass_bytes[engine]
        return 1000 * counts[columns - 1] / self.speed if columns <= len(counts) else None


@dataclass(frozen=True)
class PassFigures:
    """Time of the passes of one engine's target over a number of columns, which are the drafts and one token more.

    ``over_one`` is the ratio of the median to that of one column, ``floor`` the milliseconds in which memory gives the
    weights, and ``share_of_floor`` its part of the median; None if they are unknown. ``temperature`` is None if the run
    has only one.
    """

    engine: int
    columns: int
    passes: int
    milliseconds: Spread
    over_one: float | None
    floor: float | None
    share_of_floor: float | None
    temperature: float | None = None


def pass_figures(
    levels: Sequence[Level], modes: Sequence[DecodingMode], memory: MemoryFloor | None = None
) -> list[PassFigures]:
    """Return the cost of passes by temperature, engine and columns, over all modes.

    Only passes of one request at a time count: requests at once share a pass.
    """
    alone = [level for level in levels if level.concurrency == 1]
    return [each for level in alone for each in _of_level(level, modes, memory, named_temperature(level, levels))]


def _of_level(
    level: Level, modes: Sequence[DecodingMode], memory: MemoryFloor | None, temperature: float | None
) -> list[PassFigures]:
    seconds: dict[tuple[int, int], list[float]] = {}
    for mode in modes:
        answers = [answer for turn in level.turns if mode.title in turn for answer in turn[mode.title].answers]
        for acceptance in filter(None, (answer.acceptance for answer in answers)):
            for drafted, each in acceptance.passes:
                seconds.setdefault((mode.engine, drafted + 1), []).append(each)
    medians = {key: Spread.of([1000 * each for each in values]) for key, values in seconds.items()}
    found = []
    for (engine, columns), spread in sorted(medians.items()):
        one, floor = medians.get((engine, 1)), memory.floor(engine, columns) if memory else None
        found.append(
            PassFigures(
                engine=engine,
                columns=columns,
                passes=len(seconds[engine, columns]),
                milliseconds=spread,
                over_one=spread.median / one.median if one else None,
                floor=floor,
                share_of_floor=floor / spread.median if floor else None,
                temperature=temperature,
            )
        )
    return found
