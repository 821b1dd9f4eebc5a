"""The README.md of the demo drafter."""

from __future__ import annotations

from dataclasses import dataclass

from evaluate_pair import NEW_TOKENS, PROMPT_TOKENS, PROMPTS, TEMPERATURE, Row
from own_text import OwnText
from peagle_module import Drafter
from publish import processor
from speculation import generate_together
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

SAMPLE_PROMPTS = ("class Reader:", "def parse(text):")
SAMPLE_TOKENS = 96


@dataclass(frozen=True)
class DrafterRun:
    """A training run, as shown on its card."""

    step: int
    steps: int
    seed: int
    seconds: float
    own: OwnText
    own_batches: int
    target_digest: str


def table(rows: list[Row], prompts: int) -> str:
    """Format results as a Markdown table."""
    lines = [
        f"| K | greedy | temperature {TEMPERATURE} | identical to the target alone |",
        "|---|---|---|---|",
    ]
    lines += [f"| {row.count} | {row.greedy:.2f} | {row.sampled:.2f} | {row.identical} of {prompts} |" for row in rows]
    return "\n".join(lines)


def shown(
    target: Qwen3ForCausalLM, drafter: Drafter, tokenizer: PreTrainedTokenizerFast, prompt: str, temperature: float
) -> str:
    """Format a sample of the pair with its tokens per round."""
    count = drafter.config.num_speculative_tokens
    run = generate_together(target, drafter, tokenizer.encode(prompt), SAMPLE_TOKENS, count, temperature)
    name = "Greedy" if temperature == 0 else f"Temperature {temperature}"
    text = tokenizer.decode(run.ids, skip_special_tokens=True)
    return f"{name}, {run.tokens_per_round:.2f} tokens per round:\n\n```python\n{prompt}{text}\n```"


def drafter_card(
    run: DrafterRun, target: Qwen3ForCausalLM, drafter: Drafter, tokenizer: PreTrainedTokenizerFast, rows: list[Row]
) -> str:
    """Render the card from measured values only."""
    shape = drafter.config
    unfinished = "" if run.step == run.steps else f"\n**Unfinished: step {run.step} of {run.steps}.**\n"
    parameters = sum(weight.numel() for weight in drafter.parameters())
    taps = ", ".join(str(tap) for tap in shape.aux_layers)
    samples = "\n\n".join(
        shown(target, drafter, tokenizer, prompt, temperature)
        for prompt, temperature in zip(SAMPLE_PROMPTS, (0.0, TEMPERATURE), strict=True)
    )
    return f"""---
license: apache-2.0
tags: [speculative-decoding, p-eagle, eagle3, tiny]
---

# Demo drafter: a P-EAGLE head for the demo target
{unfinished}
A parallel drafting head with {parameters:,} parameters ({shape.num_hidden_layers} layers, hidden size
{shape.hidden_size}) for the model in `../target`. One forward pass proposes up to {shape.num_speculative_tokens}
tokens. The target verifies them, so the output is the same as without the drafter.

## Layout

The head has a flat `config.json` and one `model.safetensors` in bfloat16. It reads the residual stream entering layers
{taps} of the target (`hidden_states[i]` in Hugging Face numbering), low layer first. `midlayer` is layer 0 and takes
[embedding, features]; `mask_hidden` has the width of the input of `fc`. The placeholder token (`ptd_token_id`) is
{shape.ptd_token_id}, `<|mask|>` in the target's tokenizer. The head uses the target's full vocabulary.

## Data

* The training text was written by the target: continuations of 192 tokens after 64 tokens of the training files,
  {len(run.own.greedy)} of them greedy and {len(run.own.sampled)} sampled at temperature {TEMPERATURE}. Of the 6 windows
  of each step, 4 are greedy, 1 is sampled and 1 is text of the training files. The target's model card describes these
  files (Python standard library, PSF-2.0). Held-out files were not used.
* Licence of these weights: Apache-2.0.

## Recipe

* A window has a row for every real token. For each deeper level d = 1..7, a nested random subset of at most
  max(0.8^d, 0.2) of these rows is added as placeholders (trained depth {shape.num_speculative_tokens}). A placeholder
  sees the real rows up to its anchor and its own chain.
* Loss: cross-entropy against the target's distribution plus, at half weight, the cross-entropy against its most likely
  token, averaged over rows.
* {run.steps} steps of 6 windows of 255 tokens. Muon (peak 0.02) for the matrices of the blocks and `fc`, AdamW (peak
  0.002) for embedding, head, norms and `mask_hidden`; warm-up of 30 steps, constant, linear decay to zero over the last
  50%. Embedding, head and final norm are initialized from the target and trained. Two attention heads of the first
  block initially attend to the nearest real rows (`look_back` in `tools/drafter_start.py`).
* The head was trained against the target in bfloat16, computed under bfloat16 autocast. SHA-256 of the target's
  `model.safetensors`: `{run.target_digest}`.
* Seed {run.seed}. Time: {run.own.seconds / 60:.0f} minutes to write the text, {run.seconds / 60:.0f} minutes to train,
  on a shared {processor()}.

```
python tools/train_drafter.py --steps {run.steps} --own-batches {run.own_batches} --seed {run.seed}
```

## Held-out files

Tokens per round (accepted drafts plus one token of the target) on {PROMPTS} prompts of {PROMPT_TOKENS} tokens from the
held-out files, with {NEW_TOKENS} new tokens each, at batch size 1, with these weights in float32:

{table(rows, PROMPTS)}

```
python tools/evaluate_pair.py
```

## Samples

{samples}

## Limits

* The head works only with this target. Another target, or a retrained one, needs its own head.
* It was trained on windows of 255 tokens. Acceptance falls on longer contexts and for K above
  {shape.num_speculative_tokens}.
* Greedy text of such a small target repeats itself, which makes drafting easier than for a large target. The numbers
  above show that the pair works, not how fast a real pair would be.
"""
