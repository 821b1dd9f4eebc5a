"""``peagle-compile drafter``: add drafters to an engine, list and remove them."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...engines.draft_methods import METHODS, head_titles
from ..console.printing import columns, emit, interruptible, note, size
from .flags.help_text import DRAFT, program
from .flags.shared_flags import EngineFolder, Force, Json
from .flags.verbosity import Verbosity, with_verbosity

if TYPE_CHECKING:
    from ..pipeline.engine_drafters import EngineDrafter

drafter = program(help="Add drafters to an engine, list them, or remove one.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the drafter in the engine.", show_default=False)]


@drafter.callback(invoke_without_command=True)
def _drafter(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@interruptible("the engine was not changed; finished steps are cached, and the same command resumes from them")
@with_verbosity
def drafter_add(
    engine: EngineFolder,
    verbosity: Verbosity,
    draft: Annotated[
        str,
        typer.Option(
            help=f"Draft head ({' or '.join(head_titles().values())}): a folder, OWNER/NAME, or a short name.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the drafter in the engine, for `--draft` of `run`, `chat` and `serve`, and for the field "
            "`draft` of requests. (default: the head's own name)",
            show_default=False,
        ),
    ] = None,
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens drafted per round. (default: adaptive, starting from the head's trained depth)",
            show_default=False,
        ),
    ] = None,
    draft_revision: Annotated[
        str | None,
        typer.Option(
            help="Branch, tag or commit of the head. (default: the newest)", show_default=False, rich_help_panel=DRAFT
        ),
    ] = None,
    taps: Annotated[
        str | None,
        typer.Option(
            help="Target layers whose inputs the head reads, such as 2,24,45. (default: from the head's config.json)",
            show_default=False,
            rich_help_panel=DRAFT,
        ),
    ] = None,
    mask_token_id: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Placeholder token id of the head. (default: from its config.json)",
            show_default=False,
            rich_help_panel=DRAFT,
        ),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Build the graph of a draft head, or its TensorRT plan, and add it to an engine.

    The target is not built again, and its files do not change. The head must read the same layers of the target as
    the head that the engine was built with. The output is the same with every drafter.

    Example: peagle-compile drafter add demo-engine --draft ./head --name code
    """
    from ..pipeline.engine_drafters import DrafterRequest, add_drafter
    from ..request.request import HeadOptions

    layers = tuple(each.strip() for each in taps.split(",")) if taps else ()
    request = DrafterRequest(
        engine, draft, name, draft_revision, HeadOptions(layers, mask_token_id), num_speculative_tokens, force
    )
    with verbosity.work() as progress:
        added = add_drafter(request, progress)
    for warning in added.warnings:
        note(f"warning: {warning}")
    if as_json:
        emit(_fields(added))
        return
    record = added.record
    rows = [
        ("drafter", f"{added.name}, {size(added.bytes)}"),
        ("method", METHODS[record.method].title),
        ("speculative tokens", _k(added)),
        ("time", f"{added.seconds:.1f} s"),
        ("next", f"peagle-compile run {shlex.quote(str(engine))} --draft {added.name}"),
    ]
    print(columns(rows))


@interruptible("nothing was changed")
def drafter_list(engine: EngineFolder, as_json: Json = False) -> None:
    """List the drafters of an engine: the one that it was built with, and those that were added.

    Example: peagle-compile drafter list demo-engine
    """
    from ..pipeline.engine_drafters import list_drafters

    found = list_drafters(engine)
    if as_json:
        emit({"engine": str(engine), "drafters": [_fields(each) for each in found]})
        return
    rows = [("name", "method", "speculative tokens", "size", "head")]
    for each in found:
        method, head = METHODS[each.record.method].title, each.record.part.origin.id
        rows.append((each.name, method, _k(each), size(each.bytes), head))
    print(columns(rows) if found else "no drafters")


@interruptible("`peagle-compile drafter list` shows whether the engine still has the drafter")
@with_verbosity
def drafter_remove(engine: EngineFolder, name: Name, verbosity: Verbosity, as_json: Json = False) -> None:
    """Remove an added drafter from an engine, with its files.

    Processes that have loaded the drafter keep using it. The drafter that the engine was built with cannot be removed.

    Example: peagle-compile drafter remove demo-engine code
    """
    from ..pipeline.engine_drafters import remove_drafter

    with verbosity.work() as progress:
        removed = remove_drafter(engine, name, progress)
    if as_json:
        emit(_fields(removed))
    else:
        print(f"removed {name} from {engine}, {size(removed.bytes)}")


def _k(each: EngineDrafter) -> str:
    speculation = each.record.speculation
    k = f"{speculation.num_speculative_tokens}{' initially, then adaptive' if speculation.adapts else ''}"
    return f"{k} (at most {speculation.max_num_speculative_tokens})"


def _fields(each: EngineDrafter) -> dict[str, Any]:
    return {"name": each.name, **asdict(each.record), "bytes": each.bytes, "warnings": each.warnings}
