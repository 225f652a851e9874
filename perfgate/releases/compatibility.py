"""What all releases on record can do, as one table, each gap with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfgate.engines.insides import order_version
from perfgate.engines.sglang_releases import MOVED, find_limit
from perfgate.releases.capabilities import CAPABILITIES
from perfgate.releases.suite import ReleaseRecord, Tried
from perfgate.report.escape import markdown

HEAD = """# Which releases work

Made by `perfgate engine table benchmarks/engines/results`; each column is what `perfgate engine try` found that day: a real
server of a tiny mixture of experts on a CPU, started, asked, loaded and stopped. A cell says what works (yes), what does not
(no, with the reason below), what could not be tried after that, and what perfgate does not use of that engine (-).
"""
TITLES = {"sglang": "SGLang", "vllm": "vLLM, its builds for a CPU"}
MOVED_HEAD = """
## What moved

Each release against the one before it: what its wheel pins, and what moved in its source that perfgate, or what a MoE layer
computes and how, depends on. Read in the wheels and sources, and not in SGLang's own notes, to which the links lead.

| release | torch | sglang-kernel | Transformers | what moved |
|:--|:--|:--|:--|:--|
"""
RELEASE = "https://github.com/sgl-project/sglang/releases/tag/v"
WORDS = {"works": "yes", "fails": "**no**", "untried": "untried", "inapplicable": "-"}


def list_unexplained(found: ReleaseRecord) -> list[Tried]:
    """What a release lacks for a reason that perfgate does not know."""
    return [row for row in found.failed if find_limit(row.name, found.version) is None]


def write_compatibility(records: Sequence[ReleaseRecord]) -> str:
    """The page: for each engine a row a capability, a column a release, the reason of each gap; then what moved."""
    tables = (
        f"\n## {title}\n\n" + "\n".join(_list_lines(releases)) + "\n"
        for package, title in TITLES.items()
        if (releases := sorted((one for one in records if one.package == package), key=lambda one: order_version(one.version)))
    )
    moved = (
        _write_row(f"[{one.version}]({RELEASE}{one.version})", one.torch, one.kernels, one.transformers, "; ".join(one.what))
        for one in MOVED
    )
    return HEAD + "".join(tables) + MOVED_HEAD + "\n".join(moved) + "\n"


def _list_lines(releases: Sequence[ReleaseRecord]) -> Iterator[str]:
    yield _write_row("", "what is seen", *(markdown(one.version) for one in releases))
    yield f"|:--|:--|{':--|' * len(releases)}"
    for capability in CAPABILITIES:
        states = (_find_state(one, capability.name) for one in releases)
        yield _write_row(capability.name, capability.what, *states)
    for fact, title in (("date", "tried on"), ("torch", "torch"), ("triton", "Triton"), ("transformers", "Transformers")):
        told = (one.date if fact == "date" else markdown(one.facts.get(fact, "")) for one in releases)
        yield _write_row("", title, *told)
    yield ""
    yield from _list_reasons(releases)


def _find_state(found: ReleaseRecord, name: str) -> str:
    state = next((row.state for row in found.rows if row.name == name), "untried")
    return WORDS[state]


def _list_reasons(releases: Sequence[ReleaseRecord]) -> Iterator[str]:
    for one in releases:
        for row in one.failed:
            limit = find_limit(row.name, one.version)
            why = limit.why if limit else f"not explained: {markdown(row.said)}"
            yield f"- {markdown(one.version)}, {markdown(row.name)}: {why}."


def _write_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
