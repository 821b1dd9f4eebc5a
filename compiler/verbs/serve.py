"""``peagle-compile serve``."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from ...engines.draft_methods import METHODS
from ...plugins.errors import UsageError
from ..console import interrupts
from ..console.sizes import size_option
from .flags.from_variables import find_in_container
from .flags.help_text import DRAFT, RUN
from .flags.shared_flags import Check, NumDrafts, Threads

if TYPE_CHECKING:
    from ...engines.serving.server import Server

KEY_VARIABLE = "PEAGLE_API_KEY"


def serve(
    engine: Annotated[
        Path | None,
        typer.Argument(
            metavar="ENGINE",
            help="Engine folder made by `peagle-compile build`. (default in a SageMaker container: /opt/ml/model)",
            is_eager=True,
            callback=find_in_container,
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 listens on all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8000,
    uds: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Listen on this Unix socket; --host and --port are ignored.",
            show_default=False,
        ),
    ] = None,
    root_path: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Path under which a proxy exposes the server, such as /llm. Requests work with and without it.",
            show_default=False,
        ),
    ] = "",
    ssl_certfile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Serve HTTPS with this certificate and its chain (PEM); requires --ssl-keyfile.",
            show_default=False,
        ),
    ] = None,
    ssl_keyfile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Private key of --ssl-certfile (PEM), without a passphrase.", show_default=False
        ),
    ] = None,
    served_model_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Model name in requests. (default: the checkpoint's name)", show_default=False
        ),
    ] = None,
    max_batch_size: Annotated[int, typer.Option(min=1, help="Maximum number of requests that run at once.")] = 4,
    max_queue_size: Annotated[
        int, typer.Option(min=1, help="Maximum number of waiting requests; further requests get HTTP 429.")
    ] = 256,
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"],
        typer.Option(
            help="Order in which waiting requests start: by arrival, or by their priority field, lowest first."
        ),
    ] = "fcfs",
    max_model_len: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="N",
            help="Maximum number of tokens of a request, prompt and answer together. (default and maximum: the "
            "--max-seq-len of the build)",
            show_default=False,
        ),
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Jinja file with a chat template to use instead of the engine's own.",
            show_default=False,
        ),
    ] = None,
    trust_request_chat_template: Annotated[
        bool, typer.Option("--trust-request-chat-template", help="Accept chat_template in requests.")
    ] = False,
    prefix_cache_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE",
            parser=size_option("--prefix-cache-bytes"),
            help="Memory for the prefix cache, such as 1GB; 0 disables it. (default: an eighth of the memory that is "
            "free after the weights are loaded, at most 16GiB; 0 without this project's CPU kernels)",
            show_default=False,
        ),
    ] = None,
    max_prefill_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Maximum number of prompt tokens to process between two rounds of running requests. With a larger "
            "number, long prompts finish sooner, but running requests pause longer. (default: as many as can be "
            "processed in the time of two and a half rounds; 128 without this project's CPU kernels)",
            show_default=False,
        ),
    ] = None,
    draft: NumDrafts = None,
    load_drafter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Load this drafter too, so that requests can select it with the field draft. Can be repeated. POST "
            "/v1/drafters does the same at run time.",
            show_default=False,
            rich_help_panel=DRAFT,
        ),
    ] = None,
    model_alias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DRAFT",
            help="Additional name of the model; requests with this name use the given drafter or draft method. "
            "If DRAFT is a drafter of the engine, it is loaded at startup. Can be repeated.",
            show_default=False,
            rich_help_panel=DRAFT,
        ),
    ] = None,
    auto_draft: Annotated[
        bool,
        typer.Option(
            "--auto-draft",
            help="For requests without the field draft: if almost no drafts of the drafter are accepted, use another "
            "loaded drafter, or none.",
            rich_help_panel=DRAFT,
        ),
    ] = False,
    speculative_config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Default speculation settings for requests, in vLLM's format; also read from "
            "$SM_VLLM_SPECULATIVE_CONFIG or $OPTION_SPECULATIVE_CONFIG.",
            show_default=False,
            rich_help_panel=DRAFT,
        ),
    ] = None,
    per_request_spec_decode_metrics: Annotated[
        Literal["none", "summary", "detailed"],
        typer.Option(
            help="Add vLLM's metrics.speculative_decoding to responses with one choice; detailed adds every round.",
            rich_help_panel=DRAFT,
        ),
    ] = "none",
    structured_outputs_config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Defaults for structured outputs, as JSON in vLLM's format: disable_additional_properties, "
            "disable_any_whitespace.",
            show_default=False,
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            envvar=KEY_VARIABLE,
            help="Require this API key in requests, except for the chat page, /health, /ping, /metrics and /load. "
            "Can be repeated.",
            show_default=False,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Allow browser requests from this origin, such as https://example.com. Can be repeated. (default: "
            "none)",
            show_default=False,
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Host name that requests may use, in addition to localhost, 127.0.0.1 and [::1]. Can be repeated. "
            "(default: on a loopback address, no other name; otherwise, any name)",
            show_default=False,
        ),
    ] = None,
    max_body_bytes: Annotated[
        int,
        typer.Option(
            metavar="SIZE",
            parser=size_option("--max-body-bytes", 1024),
            help="Maximum size of a request body; larger bodies get HTTP 413. (default: 4MiB)",
            show_default=False,
        ),
    ] = 4 << 20,
    response_store_bytes: Annotated[
        int,
        typer.Option(
            metavar="SIZE",
            parser=size_option("--response-store-bytes"),
            help="Memory for the answers of /v1/responses, which later requests can continue; 0 stores none. (default: "
            "64MiB)",
            show_default=False,
        ),
    ] = 64 << 20,
    max_choices: Annotated[
        int,
        typer.Option(
            min=1, help="Maximum number of choices per request (prompts times n); requests for more get HTTP 400."
        ),
    ] = 16,
    request_timeout: Annotated[
        float,
        typer.Option(
            min=0.001, help="Time limit of a request in seconds; a request that exceeds the limit gets HTTP 408."
        ),
    ] = 600.0,
    drain_timeout: Annotated[
        float, typer.Option(min=0, help="Time in seconds for running and queued requests to finish at shutdown.")
    ] = 60.0,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Log prompts and answers.")] = False,
    threads: Threads = None,
    check: Check = "auto",
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print only the server's URL and model, as JSON, on standard output.", rich_help_panel=RUN
        ),
    ] = False,
) -> None:
    """Start an HTTP server with OpenAI's and Anthropic's APIs and a built-in chat page.

    Endpoints: /v1/completions, /v1/chat/completions, /v1/responses, /v1/messages, /v1/models, /v1/drafters, /tokenize,
    /detokenize, /health, /metrics, /load, /version, /openapi.json, and SageMaker's /ping and /invocations. Logs are
    JSON lines on standard error.

    SIGTERM or Ctrl-C stops the server once running and queued requests have finished or --drain-timeout has passed; a
    second signal stops it immediately. Without ENGINE, the server follows the SageMaker contract: it loads the engine
    from /opt/ml/model, listens on port 8080, and reads options from variables such as SM_PEAGLE_MAX_BATCH_SIZE.

    Example: peagle-compile serve demo-engine --port 8000
    """
    from ...engines import Engine
    from ...engines.draft_options import engine_with, with_drafter
    from ...engines.folder.manifest import Manifest
    from ...engines.serving import require_extra

    require_extra()
    from ...engines.serving.access import JsonLines, check_api_key, log
    from ...engines.serving.browsers import check_host_name, check_origin, check_root_path
    from ...engines.serving.listening import Tls, bound, bound_unix
    from ...engines.serving.server import Server
    from ...engines.serving.settings import Limits, ServerSettings, model_name
    from ...engines.serving.speculative_config import speculation_of
    from ...engines.serving.structured_outputs_config import form_defaults_of
    from ...engines.text.chat_template import checked_template

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("peagle.serving").setLevel(logging.INFO)
    folder = cast(Path, engine)  # the callback of the argument found one or raised
    forms = form_defaults_of(structured_outputs_config)
    keys = tuple(check_api_key(*each) for each in _keys(api_key or []))
    origins = tuple(map(check_origin, cors_origin or ()))
    names = tuple(map(check_host_name, allowed_host or ()))
    root, tls = check_root_path(root_path), Tls.of(ssl_certfile, ssl_keyfile)
    template = None if chat_template is None else checked_template(chat_template)
    aliases, drafters = _aliases(model_alias or ()), [*(load_drafter or ())]
    drafters += [each for each in aliases.values() if each not in METHODS]
    manifest, _ = engine_with(Manifest.read(folder), draft)
    for each in aliases.values():
        engine_with(manifest, each)
    for each in drafters:
        with_drafter(manifest, each)
    model = served_model_name or model_name(manifest, folder)
    if model in aliases:
        raise UsageError(
            f"--model-alias {model}={aliases[model]} is not valid",
            why="this is the model's own name, so the alias would change the draft method of all requests",
            fix=f"choose another name, or set the default of all requests with --draft {aliases[model]}",
        )
    speculation = speculation_of(speculative_config, os.environ, manifest)
    max_length = manifest.shapes.max_seq_len
    if max_model_len is not None and max_model_len > max_length:
        raise UsageError(
            f"--max-model-len is {max_model_len}, but this engine was built for at most {max_length} tokens",
            why="the engine's caches have this size",
            fix=f"use at most {max_length}, or rebuild the engine with a larger --max-seq-len",
        )
    # First, since a large engine takes minutes to load. Whatever fails then, no file of a Unix socket stays behind.
    with bound(host, port) if uds is None else bound_unix(uds) as address:
        loaded = Engine.load(
            folder,
            max_batch_size=max_batch_size,
            max_queue_size=max_queue_size,
            threads=threads,
            prefix_cache_bytes=prefix_cache_bytes,
            max_prefill_tokens=max_prefill_tokens,
            max_seq_len=max_model_len,
            chat_template=template,
            check=check,
            draft=draft,
            drafters=drafters,
            auto_draft=auto_draft,
        )
        settings = ServerSettings(
            model=model,
            api_keys=keys,
            limits=Limits(
                body_bytes=max_body_bytes,
                choices=max_choices,
                seconds=request_timeout,
                drain_seconds=drain_timeout,
                stored_bytes=response_store_bytes,
            ),
            drafts=speculation.drafts,
            structured_outputs=forms,
            log_prompts=log_prompts,
            cors_origins=origins,
            allowed_hosts=names,
            trusts_request_templates=trust_request_chat_template,
            root_path=root,
            per_request_spec_decode_metrics=per_request_spec_decode_metrics,
            scheduling_policy=scheduling_policy,
            aliases=aliases,
        )
        server = Server(loaded, settings, host, port, address, tls)
        for sentence in speculation.left_out:
            log(sentence)
        log("loaded", engine=str(folder), checked=loaded.checked)
        if tolerance := settings.drafts.acceptance_tolerance:
            log(
                "decoding is lossy by default; requests can override acceptance_tolerance",
                acceptance_tolerance=tolerance,
            )
        ready = f"{server.url} serves {settings.model} from {folder}"
        _run(server, json.dumps({"url": server.url, "model": settings.model}) if as_json else ready)


def _keys(given: Sequence[str]) -> list[tuple[str, str]]:
    """Return every API key with the name of its flag or variable.

    ``given`` are those of Typer, which splits the variable at spaces and ignores an empty one, so that the server would
    need no key. It holds one key, as a flag does.
    """
    variable = os.environ.get(KEY_VARIABLE)
    if variable is not None and [*given] == variable.split():
        return [(variable, f"${KEY_VARIABLE}")]
    return [(key, "--api-key") for key in given]


def _aliases(texts: Sequence[str]) -> dict[str, str]:
    """Return the drafts by model name. Raises ``UsageError`` for an alias that is not NAME=DRAFT."""
    aliases = {}
    for each in texts:
        name, _, draft = each.rpartition("=")
        if not name or not draft or name in aliases:
            raise UsageError(
                f"--model-alias {each} is not valid",
                why="the alias was given twice" if name in aliases else "the form is NAME=DRAFT",
                fix="pass NAME=DRAFT, with each NAME only once, for example --model-alias coder=code",
            )
        aliases[name] = draft
    return aliases


def _run(server: Server, message: str) -> None:
    from ...engines.serving.access import log

    stop_signals = 0

    def stop() -> None:
        nonlocal stop_signals
        stop_signals += 1
        server.stop(immediately=stop_signals > 1)

    with interrupts.override_handler(stop, (signal.SIGINT, signal.SIGTERM)):
        server.start()
        print(message, flush=True)
        while not server.wait(1.0):
            pass
    log("the server has stopped")
