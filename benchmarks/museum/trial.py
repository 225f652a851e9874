"""Try the patches of the CPU's exhibits on a real server: it starts with them, serves, and its log proves each.

Usage: python -m benchmarks.museum.trial VARIANT [NAME ...] [--home build/museum]

All that are named, or all of the CPU, run in one server, since a start takes most of the time. A run of an exhibit has one. The
two of evictions replace one function: of both broken ones the walk runs, and the heap is tried alone.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import click
import httpx

from benchmarks.museum.exhibits import load_all
from benchmarks.museum.hooks import Variant
from benchmarks.museum.patches import VARIABLE, describe_proof
from benchmarks.museum.run import ROOT, Museum, build_environment, execute, write_plug_in
from perfgate.errors import PerfgateError
from perfgate.scenario.catalog import load_scenario
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.model.location import locate_model
from perfgate.serving.progress import show_progress

REQUESTS, TOKENS = 8, 24
TIMEOUT_S = 800.0
"""A trial asks whether patches run, not how fast; a start beside other work takes many times as long as alone."""


@click.command()
@click.argument("variant", type=click.Choice([one.value for one in Variant]))
@click.argument("names", nargs=-1)
@click.option("--home", type=click.Path(path_type=Path), default=ROOT / "build" / "museum")
@click.option("--python", default=sys.executable, help="Python with the engine.")
def main(variant: str, names: tuple[str, ...], home: Path, python: str) -> None:
    """Start one server with these patches, serve a few requests, and say which of them ran."""
    try:
        known = [one.name for one in load_all() if one.exhibit.machine == "cpu" and one.exhibit.reenactment.kind == "patch"]
        wanted = names or tuple(known)
        log = serve(wanted, Variant(variant), Museum(home=home.resolve(), python=python, execute=execute))
    except PerfgateError as error:
        print(f"museum: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    missing = [name for name in wanted if describe_proof(name, variant) not in log]
    for name in wanted:
        print(f"{name}:{variant} {'did not run' if name in missing else 'ran'}")
    raise SystemExit(1 if missing else 0)


def serve(names: tuple[str, ...], variant: Variant, museum: Museum) -> str:
    """Serve a few requests with the patches, and return the server's log. Raise ServerError where it does not serve."""
    write_plug_in(museum.site)
    scenario = load_scenario("cpu-moe")
    path = build_environment(museum)["PYTHONPATH"]
    asked = ",".join(f"{name}:{variant}" for name in names)
    with show_progress() as progress, Reaper() as reaper:
        model = locate_model(scenario.model, None, progress)
        spec = ArmSpec(python=museum.python, env={"PYTHONPATH": path, VARIABLE: asked})
        log = museum.home / f"trial-{variant}.log"
        log.unlink(missing_ok=True)
        launch = replace(spec.build_launch(scenario, model), ready_timeout_s=TIMEOUT_S)
        with Server(launch, log, reaper) as server:
            server.wait_ready()
            server.flush_cache()
            with ThreadPoolExecutor(REQUESTS) as pool:
                list(pool.map(lambda number: _ask(server.url, number), range(REQUESTS)))
            server.raise_if_dead()
        return log.read_text(encoding="utf-8", errors="replace")


def _ask(url: str, number: int) -> None:
    content = {"text": f"word{number} " * 8, "sampling_params": {"max_new_tokens": TOKENS, "ignore_eos": True}}
    httpx.post(f"{url}/generate", json=content, timeout=TIMEOUT_S).raise_for_status()


if __name__ == "__main__":
    main()
