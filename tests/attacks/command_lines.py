"""Random command lines: every command and option of the program, with valid and invalid values."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.attacks import nasty_values as nasty
from tests.attacks.judging import judge
from tests.attacks.world import World, command

Piece = tuple[str, ...]

# Required options of each command, so that random commands get further than "no model was named".
_SIZES: tuple[Piece, ...] = (("--max-seq-len", "64"), ("--num-speculative-tokens", "3"))
_SHORT: tuple[Piece, ...] = (("--max-tokens", "6"),)
_PROOF: tuple[Piece, ...] = (("--prompts", "1"), ("--max-tokens", "4"), ("--num-speculative-tokens", "1"))
_FEW: tuple[Piece, ...] = (("--calib-samples", "40"), ("--calib-length", "16"))
_NEVER = {"--install-completion", "--show-completion"}  # of the shell that runs the tests
_GOOD = {
    "precision": ("fp32", "int8", "int4", "fp8", "mxfp8", "fp16", "bf16"),
    "backend": ("onnxruntime", "tensorrt", "tensorrt-rtx"), "for": ("ort", "std", "tensorrt"),
    "lowering": ("ort", "std"), "gpu": ("b200", "rtx-5090", "sm_89,sm_120", "sm_89"), "kv-cache-dtype": ("fp8", "int8"),
    "lm-head-precision": ("int8", "fp8"), "draft-precision": ("int8", "int4"), "calib-method": ("max", "mse"),
    "exclude": ("layers.0.*", "*", "lm_head"),
    "draft": ("ngram", "none"),
    "num-speculative-tokens": ("0", "1", "6", "64"), "data": ("texts.jsonl",),
}  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """A flag or an argument as the program's help lists it: its name, what it takes, and whether it takes nothing."""

    name: str
    takes: str
    is_switch: bool


@cache
def parameters() -> dict[str, dict[str, Parameter]]:
    """The parameters of every verb by flag; an argument has no dash."""
    import typer

    from peagle.compiler.verbs.program import app

    verbs: dict[str, dict[str, Parameter]] = {}

    def collect(name: str, entry: Any) -> None:
        for below, inner in getattr(entry, "commands", {}).items():
            collect(f"{name} {below}".strip(), inner)
        if not getattr(entry, "commands", None):
            context, verbs[name] = typer.Context(entry), {}
            for each in entry.params:
                takes, _ = each.get_help_record(context) or ("", "")
                for flag in set(each.opts) - _NEVER:
                    verbs[name][flag] = Parameter(
                        flag.strip("-").replace("_", "-"), takes, bool(getattr(each, "is_flag", False))
                    )

    collect("", typer.main.get_command(app))
    return verbs


def draw(rng: random.Random, world: World, *, whole: bool = True) -> list[Piece]:
    """A command line in pieces, most of which can be left out. ``whole`` has builds that take seconds, too."""
    verbs = parameters()
    verb = rng.choice(["build"] * 4 + ["run"] * 3 + ["export", "quantize", "verify"] * 2 + list(verbs))
    pieces: list[Piece] = [tuple(verb.split())] if rng.random() < 0.98 else [(nasty.argument(rng),)]
    pieces += [piece for piece in _base(verb, world) if rng.random() < 0.96]
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        pieces.append(_piece(rng, world, verbs[verb]))
    if verb in ("build", "export") and not whole and rng.random() < 0.8:
        pieces.append(("--max-seq-len", "many"))  # is read last
    said = {part for piece in pieces for part in piece}
    if verb == "build" and said & {"--gpu", "tensorrt-rtx"}:  # a plan takes minutes; other tests cover them
        pieces.append(("--dry-run",))
    return pieces


def run(world: World, pieces: list[Piece]) -> str | None:
    """Describe what is wrong with the end of a command line, or return None."""
    arguments = [part for piece in pieces for part in piece]
    outcome = command(arguments, stdin=b"def f(")
    return judge(world, outcome, arguments)


def _base(verb: str, world: World) -> list[Piece]:
    target, head = ("--model", str(world.pair.target)), ("--draft", str(world.pair.head))
    if verb in ("build", "export"):
        return [target, head, *_SIZES, ("--out", "out")]
    if verb == "quantize":
        return [target, *_FEW, ("--out", "out")]
    if verb in ("run", "verify", "inspect"):
        return [(str(world.engine),), *{"run": _SHORT, "verify": _PROOF}.get(verb, ())]
    return []


def _piece(rng: random.Random, world: World, known: dict[str, Parameter]) -> Piece:
    """An option with a value, or what looks like one."""
    roll = rng.random()
    if roll < 0.06 or not known:
        return (nasty.argument(rng),)
    flag = rng.choice(list(known))
    parameter = known[flag]
    if not flag.startswith("-"):  # an argument
        return (_value(rng, world, parameter),)
    if roll < 0.10:
        return (rng.choice((f"{flag}x", flag[:-1], flag.upper(), f"-{flag}", f"{flag}=", f"--no-{flag[2:]}")),)
    if parameter.is_switch:
        return (flag,)
    if flag == "--config":
        return flag, _config(rng, world)
    if flag == "--set":
        return flag, rng.choice((f"{_name(rng)}={_text(rng)}", f"{_name(rng)}={_text(rng)}", nasty.argument(rng)))
    text = _value(rng, world, parameter)
    return (f"{flag}={text}",) if rng.random() < 0.2 else (flag, text)


def _value(rng: random.Random, world: World, parameter: Parameter) -> str:
    """A text for a parameter: of its type as a rule, one that it knows at times, anything else now and then."""
    name = parameter.name
    roll = rng.random()
    if roll < 0.35 and name in _GOOD:
        good = rng.choice(_GOOD[name])
        return str(world.files / good) if good.endswith(".jsonl") else good
    if roll > 0.9:
        return nasty.argument(rng)
    if "<int" in parameter.takes or "<float" in parameter.takes:
        return nasty.number_as_text(rng)
    if "SIZE" in parameter.takes or "AGE" in parameter.takes:
        return nasty.number_as_text(rng) + rng.choice(("", "d", "w", "GB", "kb", "\u212aB"))
    if "<path" in parameter.takes or name in ("model", "draft", "model-argument"):
        return rng.choice(world.paths)
    return nasty.argument(rng)


# ------------------------------------------------------------------------------------------------------ documents


def _name(rng: random.Random) -> str:
    from peagle.compiler.request.compat.option_map import OPTION_MAP
    from peagle.compiler.request.verb_options import BUILD, GROUPS

    if rng.random() < 0.3:
        return rng.choice(list(OPTION_MAP))
    names = [entry.option.name for entry in BUILD]
    one = rng.choice(names) if rng.random() < 0.9 else nasty.argument(rng)
    return f"{rng.choice(list(GROUPS))}.{one}" if rng.random() < 0.2 else one


def _text(rng: random.Random) -> str:
    return nasty.number_as_text(rng) if rng.random() < 0.5 else nasty.argument(rng)


def _config(rng: random.Random, world: World) -> str:
    """The path of a file of options, written for the draw, and not what remains of a command."""
    roll = rng.random()
    if roll < 0.15:
        return rng.choice(world.paths)
    path = world.root.with_name(f"{world.root.name}-documents") / f"{rng.getrandbits(40):x}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(rng.choice(nasty.NOT_A_DOCUMENT) if roll < 0.4 else _document(rng, path))
    return str(path)


def _document(rng: random.Random, path: Path) -> bytes:
    """Options, in groups or not, as JSON, which is YAML as well."""
    from peagle.compiler.request.compat.option_map import BUILD_CONFIG
    from peagle.compiler.request.compat.option_map import GROUPS as OTHERS
    from peagle.compiler.request.verb_options import GROUPS

    content: dict[str, Any] = {_name(rng): nasty.value(rng) for _ in range(rng.randint(1, 3))}
    if rng.random() < 0.3:
        content[rng.choice(list(GROUPS))] = nasty.value(rng)
    if rng.random() < 0.3:
        content[rng.choice([*GROUPS, *OTHERS, BUILD_CONFIG])] = {_name(rng).rpartition(".")[2]: nasty.value(rng)}
    if rng.random() < 0.1:
        content["config"] = str(path)
    return json.dumps(content).encode()
