"""Serve one engine with several replicas behind Ray Serve, and change the deployment while it answers.

    pip install -e '.[serve]' 'ray[serve]'
    python examples/ray_serve.py serve demo-engine --min-replicas 2 --port 8000
    python examples/ray_serve.py replace rebuilt-engine
    python examples/ray_serve.py canary code --share 0.5
    python examples/ray_serve.py promote

Every replica has the loop and the HTTP API of ``peagle-compile serve``. The front accepts requests, chooses a replica
by the prompt's prefix and the replica's load, and forwards the response. If a replica dies, the front repeats the
request on another replica with the same seed, which produces the same text, and skips the part of a stream that was
already sent. Only streams of ``/v1/messages`` and ``/v1/responses`` that have begun end with an error. docs/ray.md
describes the commands, the guarantees and their limits.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import fleet
import ray
from fleet.front import Front
from fleet.replica import Replica
from fleet.routing import PrefixRouter
from fleet.scaling import SpeedPolicy
from fleet.settings import Drafters, Fleet, Holder, Scaling
from ray import cloudpickle, serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from peagle.compiler.console.sizes import argument
from peagle.engines.draft_options import with_drafter
from peagle.engines.folder.manifest import Manifest
from peagle.engines.serving.settings import Limits
from peagle.plugins.errors import EnvironmentProblem, PeagleError, UsageError

ENGINE, FRONT = "engine", "front"  # applications, so that one is replaced without the other
DRAIN_SECONDS = Limits().seconds + 60.0  # a replica that ends first finishes its requests, the longest included


def engine_application(fleet: Fleet) -> Any:
    """Return the Ray application of the replicas; each reserves ``threads`` processors."""
    scaling = fleet.scaling
    number: dict[str, Any] = {"num_replicas": scaling.least}
    if scaling.most > scaling.least:
        policy = AutoscalingPolicy(
            policy_function=SpeedPolicy, policy_kwargs={"tokens_per_second": scaling.tokens_per_second}
        )
        number = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=scaling.least,
                max_replicas=scaling.most,
                target_ongoing_requests=scaling.ongoing,
                upscale_delay_s=scaling.up_delay,
                downscale_delay_s=scaling.down_delay,
                policy=policy,
            )
        }
    deployment = serve.deployment(
        Replica,
        **number,
        max_ongoing_requests=256,
        ray_actor_options={"num_cpus": fleet.threads},
        health_check_period_s=5,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=DRAIN_SECONDS,
        max_constructor_retry_count=2,
        max_surge_percent=fleet.surge,
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
    )
    return deployment.bind(fleet)


def serve_engine(options: argparse.Namespace) -> None:
    """Run on this machine, or on the cluster in RAY_ADDRESS, until Ctrl-C."""
    most = options.max_replicas or options.min_replicas
    if most < options.min_replicas:
        raise UsageError(
            f"--max-replicas {most} is below --min-replicas {options.min_replicas}", fix="raise --max-replicas"
        )
    scaling = Scaling(
        options.min_replicas, most, options.max_batch_size, options.tokens_per_second, options.upscale_delay,
        options.downscale_delay,
    )  # fmt: skip
    wanted = Fleet(
        str(Path(options.engine).resolve()), options.max_batch_size, options.threads, options.prefix_cache_bytes,
        scaling, options.max_surge_percent,
    )  # fmt: skip
    Manifest.read(Path(wanted.engine))
    if "RAY_ADDRESS" not in os.environ:
        ray.init(include_dashboard=False)
    serve.start(http_options={"host": options.host, "port": options.port})
    holder = ray.remote(Holder).options(
        name=Holder.NAME,
        namespace=Holder.NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        get_if_exists=True,
    )
    actor = holder.remote(wanted)
    ray.get(actor.set.remote(wanted))  # it may be left from before
    try:
        serve.run(engine_application(wanted), name=ENGINE, route_prefix=None)
        front = serve.deployment(Front, max_ongoing_requests=4096, ray_actor_options={"num_cpus": 0})
        serve.run(front.bind(Replica.__name__, ENGINE), name=FRONT, blocking=True)
    finally:
        ray.kill(actor)


def replace_engine(options: argparse.Namespace) -> None:
    """Replace the engine, replica by replica; return when it is done. If it cannot be loaded, the old one stays."""
    holder, old = _current()
    new = replace(old, engine=str(Path(options.engine).resolve()))
    _require(new.engine, new.drafters.usual, new.drafters.candidate)
    ray.get(holder.set.remote(new))
    try:
        serve.run(engine_application(new), name=ENGINE, route_prefix=None)
    except RuntimeError:
        why = _reason(serve.status().applications[ENGINE].deployments[Replica.__name__].message)
        ray.get(holder.set.remote(old))
        serve.run(engine_application(old), name=ENGINE, route_prefix=None)
        raise EnvironmentProblem(
            f"no replica could load {new.engine}; all run {old.engine} again",
            why=why,
            fix="run it on a machine of the cluster: peagle-compile run ENGINE",
        ) from None
    print(f"all replicas run {new.engine}")


def _reason(message: str) -> str:
    """Return the last error of Ray's message about a failure, which ends with the traceback of a replica."""
    lines = message.strip().splitlines()
    begins = max((i for i, line in enumerate(lines) if re.match(r"[\w.]+: ", line)), default=0)
    return " ".join(line.strip() for line in lines[begins:])


def start_canary(options: argparse.Namespace) -> None:
    """Let a share of the replicas use another drafter of the engine folder."""
    if not 0 < options.share < 1:
        raise UsageError(f"--share is {options.share}", fix="set a number between 0 and 1, such as 0.25")
    holder, now = _current()
    _require(now.engine, options.drafter)
    _set_drafters(holder, now, replace(now.drafters, candidate=options.drafter, share=options.share))


def promote(options: argparse.Namespace) -> None:
    """Let all replicas use the drafter of the canary."""
    del options
    _end_canary(Drafters.promoted)


def roll_back(options: argparse.Namespace) -> None:
    """End the canary: all replicas use the drafter from before."""
    del options
    _end_canary(Drafters.rolled_back)


def _end_canary(change: Callable[[Drafters], Drafters]) -> None:
    holder, now = _current()
    if now.drafters.candidate is None:
        raise UsageError("no canary runs", fix="start one: canary NAME --share 0.25")
    _set_drafters(holder, now, change(now.drafters))


def _set_drafters(holder: Any, now: Fleet, drafters: Drafters) -> None:
    ray.get(holder.set.remote(replace(now, drafters=drafters)))
    print("replicas change their drafters within seconds; GET /fleet shows them")


def _current() -> tuple[Any, Fleet]:
    """Return the actor with the settings, and the settings. Raises ``UsageError`` if no deployment runs."""
    try:
        ray.init("auto", namespace=Holder.NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        holder = Holder.actor()
    except (ConnectionError, ValueError):
        raise UsageError("no deployment runs here", fix="start one: serve ENGINE, or set RAY_ADDRESS") from None
    return holder, ray.get(holder.get.remote())


def _require(engine: str, *drafters: str | None) -> None:
    """Raise a ``PeagleError`` if the folder is no engine or lacks one of the drafters."""
    manifest = Manifest.read(Path(engine))
    for name in drafters:
        if name is not None:
            with_drafter(manifest, name)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="serve|replace|canary|promote|rollback")

    def verb(name: str, run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        described = verbs.add_parser(name, help=run.__doc__, description=run.__doc__)
        described.set_defaults(run=run)
        return described

    of_serve = verb("serve", serve_engine)
    of_serve.add_argument("engine", help="engine folder, at the same absolute path on every machine")
    of_serve.add_argument("--min-replicas", type=int, default=2, help="replicas; with --max-replicas, the minimum")
    of_serve.add_argument("--max-replicas", type=int, help="scale up to this number as requests require")
    of_serve.add_argument(
        "--tokens-per-second", type=float, help="scale up while answers are slower, as GET /fleet measures them"
    )
    of_serve.add_argument("--upscale-delay", type=float, default=30.0, help="seconds of load before it scales up")
    of_serve.add_argument("--downscale-delay", type=float, default=600.0, help="idle seconds before it scales down")
    of_serve.add_argument(
        "--max-surge-percent", type=int, default=0, help="extra replicas that replace starts before old ones end"
    )
    of_serve.add_argument("--host", default="127.0.0.1")
    of_serve.add_argument("--port", type=int, default=8000)
    of_serve.add_argument("--max-batch-size", type=int, default=4)
    of_serve.add_argument("--threads", type=int, default=1, help="processors per replica")
    of_serve.add_argument(
        "--prefix-cache-bytes", type=argument("--prefix-cache-bytes"), default=256 << 20,
        help="prompt cache per replica, such as 1GB",
    )  # fmt: skip
    verb("replace", replace_engine).add_argument("engine", help="folder of the new engine, on every machine")
    of_canary = verb("canary", start_canary)
    of_canary.add_argument("drafter", help="name of a drafter, as peagle-compile drafter list shows it")
    of_canary.add_argument("--share", type=Fraction, default=Fraction(1, 4), help="share of the replicas, rounded up")
    verb("promote", promote)
    verb("rollback", roll_back)
    return parser.parse_args()


def main() -> None:
    """Run a command; an invalid one is explained."""
    cloudpickle.register_pickle_by_value(fleet)  # other machines need no copy of these files
    options = _arguments()
    try:
        options.run(options)
    except PeagleError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
