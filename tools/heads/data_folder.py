"""The folder of training text and states: its contents, and recovery after a kill."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from .dialogues import Dialogue, read_dialogues
from .overlap import Held
from .states import Lesson, lessons_of, load_lessons, save_lessons
from .user_turns import KINDS

FILE_LESSONS = 64  # dialogues per file of states
OFTEN = 3  # occurrences of a token that a vocabulary is changed for


def write_whole(path: Path, text: str) -> None:
    """Write a temporary file and rename it: a kill leaves the old file or the new one."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    os.replace(partial, path)


@dataclass(frozen=True)
class Description:
    """The origin of the data: target name, placeholder token, seed, sources of the prompts, and kinds of user turns."""

    target: str
    mask_id: int
    seed: int
    corpus_digest: str
    kinds: str = " ".join(KINDS)


class DataFolder:
    """text-W.jsonl per worker, states-W-I.pt per 64 of its lines, dropped.json, description.json."""

    def __init__(self, root: Path):
        self.root = root

    def text_file(self, worker: int) -> Path:
        return self.root / f"text-{worker}.jsonl"

    def dialogues(self) -> list[Dialogue]:
        """Return all dialogues in the order of the files."""
        return [dialogue for path in sorted(self.root.glob("text-*.jsonl")) for dialogue in read_dialogues(path)]

    def describe(self, description: Description) -> None:
        """Write the description. Raises ``SystemExit`` if the folder holds other data."""
        content = {name: str(value) for name, value in asdict(description).items()}
        path = self.root / "description.json"
        if path.exists() and json.loads(path.read_text()) != content:
            raise SystemExit(f"{self.root} holds data with other settings ({path.read_text()}): use another folder")
        path.write_text(json.dumps(content, indent=2) + "\n")

    def description(self) -> Description:
        """Read the description. Raises ``SystemExit`` if there is none."""
        path = self.root / "description.json"
        if not path.exists():
            raise SystemExit(f"{self.root} contains no training data: create it with `python tools/make_head_data.py`")
        content = json.loads(path.read_text())
        return Description(**content | {"mask_id": int(content["mask_id"]), "seed": int(content["seed"])})

    def write_states(
        self,
        target: LlamaForCausalLM,
        tokenizer: PreTrainedTokenizerBase,
        taps: tuple[int, ...],
        held: Held,
        unfinished: bool,
    ) -> None:
        """Write states for every 64 dialogues without; for a shorter rest only if the text is not `unfinished`.

        Dialogues that overlap with held-out texts are skipped and listed in dropped.json.
        """
        dropped: dict[str, str] = {}
        for path in sorted(self.root.glob("text-*.jsonl")):
            written = read_dialogues(path)
            for first in range(0, len(written), FILE_LESSONS):
                part = written[first : first + FILE_LESSONS]
                shown = {dialogue.index: held.shown_in(tokenizer.decode(dialogue.ids)) for dialogue in part}
                dropped |= {str(index): run for index, run in shown.items() if run}
                out = self.root / f"states-{path.stem.removeprefix('text-')}-{first // FILE_LESSONS:04d}.pt"
                kept = [dialogue for dialogue in part if not shown[dialogue.index]]
                if not kept or (unfinished and len(part) < FILE_LESSONS):
                    continue
                if out.exists() and len(load_lessons(out)) == len(kept):
                    continue
                save_lessons(out, lessons_of(target, kept, taps))
                print(f"{out.name}: {len(kept)} of {len(part)} dialogues", flush=True)
        write_whole(self.root / "dropped.json", json.dumps(dropped, indent=1) + "\n")
        print(f"{len(dropped)} dialogues skipped: they overlap with evaluation prompts", flush=True)

    def dropped(self) -> int:
        """Return the number of skipped dialogues."""
        return len(json.loads((self.root / "dropped.json").read_text()))

    def lessons(self) -> list[Lesson]:
        """Return all lessons. Raises ``SystemExit`` if there are none."""
        files = sorted(self.root.glob("states-*.pt"))
        if not files:
            raise SystemExit(f"{self.root} contains no states: create them with `python tools/make_head_data.py`")
        return [lesson for path in files for lesson in load_lessons(path)]

    def draft_vocabulary(self, size: int, like: Tensor | None = None) -> Tensor:
        """Return the `size` most frequent target ids in the lessons, int64, ascending; ties go to the smaller id.

        With the vocabulary of another head, `like`, its ids stay; others that occur OFTEN replace those that never do,
        since a few lessons tell little about rare tokens. Saved, because a partly trained head needs the same
        vocabulary even if more text is written meanwhile.
        """
        kept = self.root / f"vocabulary-{size}.json"
        if kept.exists():
            return torch.tensor(json.loads(kept.read_text()))
        ids = torch.cat([lesson.ids for lesson in self.lessons()])
        counts = Counter(ids.tolist())
        # Ids that never occur follow in their own order, which puts the commonest byte pairs first.
        order = sorted(counts, key=lambda token: (-counts[token], token))
        order += [token for token in range(size + len(order)) if token not in counts]
        if like is not None:
            known = set(like.tolist())
            new = [token for token in order if counts[token] >= OFTEN and token not in known]
            order = [*(token for token in known if token in counts), *new, *(like[~torch.isin(like, ids)].tolist())]
        chosen = sorted(order[:size])
        write_whole(kept, json.dumps(chosen) + "\n")
        return torch.tensor(chosen)

    def coverage(self, draft_ids: Tensor) -> float:
        """Return the share of answer tokens that `draft_ids` cover."""
        lessons = self.lessons()
        inside = sum(int(torch.isin(lesson.ids[lesson.answer :], draft_ids).sum()) for lesson in lessons)
        return inside / sum(len(lesson.ids) - lesson.answer for lesson in lessons)
