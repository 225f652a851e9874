"""The two ways in which a search measures commits: by serving them, and by a command in their checkouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from math import log1p
from pathlib import Path
from typing import Any

from perfgate.bisection.checkouts import CheckoutStore
from perfgate.bisection.commands import CommandBench
from perfgate.bisection.guard import Guard
from perfgate.bisection.search import SearchRules
from perfgate.bisection.sessions import SessionBench
from perfgate.bisection.trial import CommitBench, PlaceStore
from perfgate.core import Better
from perfgate.errors import InputError
from perfgate.metrics import METRICS
from perfgate.scenario.catalog import read_scenario_text
from perfgate.scenario.schema import parse_scenario
from perfgate.serving.engine.arms import ArmSpec, parse_environment
from perfgate.serving.progress import Progress
from perfgate.serving.watch.telemetry import require_gpu
from perfgate.stats.looks import LookPlan
from perfgate.verdict.power import Cost, SampleSize

MARGIN_RATIO = 0.03
ALPHA, LOOKS = 0.01, (2, 3, 4, 6)
"""What a scenario says unless it says otherwise; commands have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """What a way of measuring brings along; `facts` may not change while a search goes on."""

    facts: dict[str, Any]
    rules: SearchRules
    build_checkouts: Callable[[Guard], PlaceStore]
    build_bench: Callable[[PlaceStore, Progress], CommitBench]


def plan_served(options: dict[str, Any]) -> SearchPlan:
    """Serve each commit and measure a scenario. Raise InputError for a metric that it does not gate, and without its GPU."""
    text, source = read_scenario_text(options["scenario"])
    scenario = parse_scenario(text, source)
    if options["metric"] and options["metric"] not in scenario.gates:
        raise InputError(f"--metric {options['metric']}: {source} does not gate it; one of {', '.join(scenario.gates)}")
    require_gpu(scenario)
    spec = ArmSpec(python=options["python"], args=options["args"], env=parse_environment(options["env"]))
    gpus = max(1, replace(scenario.server, args=(*scenario.server.args, *spec.args)).gpus)
    return SearchPlan(
        facts={
            "scenario": scenario.name,
            "scenario_sha256": sha256(text.encode()).hexdigest(),
            "args": spec.args,
            "env": dict(spec.env),
            "python": spec.python,
            "package": options["package"],
        },
        rules=SearchRules(
            plan=LookPlan(alpha=scenario.alpha, looks=scenario.blocks.looks),
            budget=options["budget"],
            metric=options["metric"],
            confidence=options["confidence"],
            block_minutes=Cost(gpus=gpus).minutes(SampleSize(blocks=1, windows=scenario.blocks.windows)),
            gpus=gpus,
        ),
        build_checkouts=lambda guard: CheckoutStore(
            repo=options["repo"],
            folder=options["out"],
            guard=guard,
            build=options["build"],
            engine=Path(spec.python),
            package=options["package"],
        ),
        build_bench=lambda checkouts, progress: SessionBench(
            checkouts=checkouts,
            scenario=scenario,
            text=text,
            spec=spec,
            baselines=options["baselines"],
            model=options["model"],
            progress=progress,
        ),
    )


def plan_commanded(options: dict[str, Any]) -> SearchPlan:
    """Run a command in the checkout of each commit."""
    metric = METRICS.get(options["metric"])
    margin_ratio = options["margin"] or (metric.margin_ratio if metric else MARGIN_RATIO)
    higher = metric.better is Better.HIGHER if metric else options["better"] == "higher"
    kept = ("shell", "windows", "aa_blocks", "timeout")
    return SearchPlan(
        facts={name: options[name] for name in kept} | {"margin": margin_ratio, "higher": higher},
        rules=SearchRules(
            plan=LookPlan(alpha=ALPHA, looks=LOOKS),
            budget=options["budget"],
            confidence=options["confidence"],
            aa_blocks=options["aa_blocks"],
        ),
        build_checkouts=lambda guard: CheckoutStore(
            repo=options["repo"], folder=options["out"], guard=guard, build=options["build"]
        ),
        build_bench=lambda checkouts, _: CommandBench(
            checkouts=checkouts,
            command=options["shell"],
            metric=options["metric"],
            margin_log=log1p(margin_ratio),
            higher=higher,
            windows=options["windows"],
            timeout_s=options["timeout"],
        ),
    )
