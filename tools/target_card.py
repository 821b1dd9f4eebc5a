"""The README.md of the demo target."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import torch
from corpus import Corpus
from publish import processor
from target_model import perplexity
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

# Without a trailing line break: the tokenizer merges a break and the following indentation into one token.
SAMPLE_PROMPTS = ("class Queue:", "def read_lines(path")
SAMPLE_TOKENS = 120


@dataclass(frozen=True)
class TargetRun:
    """A training run, as shown on its card."""

    step: int
    steps: int
    seed: int
    seconds: float
    train_tokens: int


@torch.no_grad()
def sample(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str, temperature: float, seed: int
) -> str:
    """Return `prompt` and its continuation; temperature 0 is greedy."""
    torch.manual_seed(seed)
    ids = torch.tensor([tokenizer.encode(prompt)])
    choice = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature > 0 else {"do_sample": False}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=SAMPLE_TOKENS, **choice)
    return str(tokenizer.decode(out[0], skip_special_tokens=True))


def target_card(
    run: TargetRun,
    corpus: Corpus,
    loss: float,
    held_tokens: int,
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
) -> str:
    """Render the card from measured values only."""
    unfinished = "" if run.step == run.steps else f"\n**Unfinished: step {run.step} of {run.steps}.**\n"
    greedy = sample(model, tokenizer, SAMPLE_PROMPTS[0], 0.0, run.seed)
    sampled = sample(model, tokenizer, SAMPLE_PROMPTS[1], 0.8, run.seed)
    held_files = textwrap.fill(
        "* Held-out files: " + ", ".join(f"`{file.name}`" for file in corpus.held_out) + ".",
        width=118,
        subsequent_indent="  ",
        break_on_hyphens=False,
    )
    parameters = sum(weight.numel() for weight in model.parameters())
    shape = model.config
    return f"""---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [python, code, tiny, qwen3]
---

# Demo target: a tiny Python language model
{unfinished}
A Qwen3 decoder with {parameters:,} parameters ({shape.num_hidden_layers} layers, hidden size {shape.hidden_size}),
trained from scratch on the source text of Python's standard library. With this model and its P-EAGLE drafter
(`../drafter`), you can build, verify and run an engine on any machine, without a download or a GPU. The generated text
looks like Python but is useless as a program.

## Data

* Python {corpus.python_version} standard library, `.py` files: {len(corpus.train)} for training ({run.train_tokens:,}
  tokens), {len(corpus.held_out)} held out ({held_tokens:,} tokens).
* Excluded: tests, tables (`encodings`, `pydoc_data`, `html/entities.py`, ...), `lib2to3`, build-time files, files that
  are not ASCII. `tools/corpus.py` has the exact rule.
{held_files}
* SHA-256 of file names and contents: `{corpus.digest}`.
* Licence of the text: PSF-2.0 (Python Software Foundation). Licence of these weights: Apache-2.0.

## Recipe

* Tokenizer: lossless byte-level BPE with {shape.vocab_size} entries, trained on the training files. `<|endoftext|>`
  (0) ends a document and serves as bos, eos and pad; `<|mask|>` (1) is the drafter's placeholder and never occurs in
  text.
* {run.steps} steps of 8 windows of 512 tokens ({run.steps * 4096 / run.train_tokens:.1f} epochs). Muon (peak 0.02) for
  the matrices of the blocks, AdamW (peak 0.004) for the embedding and the norms; warm-up of 60 steps, constant, linear
  decay to zero over the last 35%. bfloat16 autocast; float32 master weights, rounded to bfloat16 at the end.
* Seed {run.seed}. Time: {run.seconds / 60:.0f} minutes on a shared {processor()}.

```
python tools/train_target.py --steps {run.steps} --seed {run.seed}
```

With the same corpus digest, seed, steps and library versions, the run can be repeated. Other hardware rounds
differently, so its weights are close but not bit-identical.

## Held-out files

Loss {loss:.3f} nats per token, perplexity {perplexity(loss):.2f} (windows of 512 tokens, these weights in float32):

```
python tools/evaluate_pair.py --loss-only
```

## Samples

Greedy, after `{SAMPLE_PROMPTS[0]}`:

```python
{greedy}
```

Temperature 0.8, after `{SAMPLE_PROMPTS[1]}`:

```python
{sampled}
```

## Limits

* The model was trained on windows of 512 tokens. Expect longer texts to degrade, although 2,048 positions are allowed.
* It repeats phrases of the standard library, including its names and comments. In practice it writes only ASCII.
* It does not follow instructions and has no safety training. Nothing that it writes can be assumed to be correct.
"""
