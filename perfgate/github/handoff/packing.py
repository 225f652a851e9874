"""From a result folder to a hand-off and back: numbers cross the border, texts, paths and settings stay behind."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from perfgate.engines.table import ENGINES
from perfgate.errors import HandoffError
from perfgate.evidence import Answers, Question, Session
from perfgate.github.handoff.choices import ChoicesEntry
from perfgate.github.handoff.handoff import (
    MAX_PROBLEMS,
    MAX_TEXT,
    RECORD_FIELDS,
    AnswerEntry,
    ArmFacts,
    Handoff,
    ReplyEntry,
    UseEntry,
    WindowEntry,
    describe,
    dump_handoff,
    parse_handoff,
)
from perfgate.github.handoff.packages import PackagesEntry
from perfgate.github.handoff.profiles import pack_profile, unpack_profile
from perfgate.github.handoff.subject import HandoffSubject
from perfgate.readers.bench_serving import NOT_JSON, read_bytes
from perfgate.readers.replies import draw_prompts
from perfgate.results.answers import store_answers
from perfgate.results.expert_use import list_use, store_use
from perfgate.results.profiling.profiles import read_attribution
from perfgate.results.records import HANDED_OVER, ArmRecord, IndexLine, SessionRecord, read_entries, read_record
from perfgate.results.results import load_results
from perfgate.results.writer import ResultWriter
from perfgate.scenario.catalog import list_scenarios, read_scenario_text
from perfgate.scenario.safeguards import Check, Equivalence
from perfgate.scenario.schema import parse_scenario
from perfgate.verdict.validity.admission import find_problems


def pack_answers(found: Answers) -> AnswerEntry:
    """Keep of a start's answers what the comparison reads."""
    question = found.question
    return AnswerEntry(
        arm=found.arm,
        block=found.block,
        start=found.start,
        prompts=question.prompts,
        input_len=question.input_len,
        output_len=question.output_len,
        vocab=question.vocab,
        seed=question.seed,
        replies=tuple(
            ReplyEntry(tokens=reply.tokens, logprobs=reply.logprobs, prompt_logprobs=reply.prompt_logprobs)
            for reply in found.replies
        ),
    )


def check_question(entry: AnswerEntry, rules: Equivalence) -> None:
    """Refuse answers to other prompts than this side's scenario asks: easier ones would tell less."""
    for name in ("prompts", "input_len", "output_len", "seed"):
        asked, wanted = getattr(entry, name), getattr(rules, name)
        if asked != wanted:
            raise HandoffError(f"answers: {name} is {asked} where the scenario asks {wanted}; refused")


def unpack_answers(entry: AnswerEntry, folder: Path) -> None:
    """Write a start's answers into a result folder, in the form of a server's reply, with the prompts drawn here."""
    question = Question(
        prompts=entry.prompts, input_len=entry.input_len, output_len=entry.output_len, vocab=entry.vocab, seed=entry.seed
    )
    pairs = zip(entry.replies, draw_prompts(question), strict=False)
    raw = orjson.dumps([_write_reply(reply, prompt) for reply, prompt in pairs])
    store_answers(folder, raw, Answers(arm=entry.arm, block=entry.block, start=entry.start, question=question))


def _write_reply(reply: ReplyEntry, prompt: list[int]) -> dict[str, Any]:
    scored = [None, *reply.prompt_logprobs]
    return {
        "output_ids": list(reply.tokens),
        "meta_info": {
            "finish_reason": {"type": "length"},
            "prompt_tokens": len(prompt),
            "completion_tokens": len(reply.tokens),
            # A count that does not match leaves a reply that the reader refuses in its own words.
            "input_token_logprobs": [[value, token, None] for value, token in zip(scored, prompt, strict=False)],
            "output_token_logprobs": [[value, token, None] for value, token in zip(reply.logprobs, reply.tokens, strict=False)],
        },
    }


def pack_use(folder: Path) -> Iterator[UseEntry]:
    """Keep of each arm which experts it chose; of one whose choices were damaged nothing, so that it is missed."""
    for record, raw in list_use(folder):
        found = record.unknown if raw is None else raw
        if found is not None:
            yield UseEntry(arm=record.arm, block=record.block, start=record.start, found=found)


def unpack_use(entry: UseEntry, folder: Path) -> None:
    """Write an arm's choices into a result folder, where they are judged as if they had been made here."""
    store_use(folder, entry.found, arm=entry.arm, block=entry.block, start=entry.start)


_NOT_FACT = re.compile(r"[^A-Za-z0-9 _.,:()+/@#~-]+")


def pack_folder(
    folder: Path, subject: HandoffSubject, choices: ChoicesEntry | None = None, packages: PackagesEntry | None = None
) -> bytes:
    """Turn a result folder into a hand-off, with what another job said of the arms' choices and how their packages differ.

    Raise HandoffError when it holds more, or other, than a reader would accept.
    """
    try:
        content = dump_handoff(replace(_build_handoff(folder, subject), choices=choices, packages=packages))
    except ValidationError as error:
        raise HandoffError(f"{folder}: {describe(error)}") from None
    parse_handoff(content, str(folder))
    return content


def _build_handoff(folder: Path, subject: HandoffSubject) -> Handoff:
    record = read_record(folder)
    scenario, session = load_results(folder)
    return Handoff(
        schema=1,
        subject=subject,
        perfgate=record.perfgate,
        scenario=record.scenario,
        workload_hash=record.workload_hash,
        purpose=record.purpose,
        begun_utc=record.begun_utc,
        is_complete=session.is_complete,
        arms={arm: _pack_arm(found) for arm, found in record.arms.items()},
        problems=tuple(clean_text(problem) for problem in find_problems(session, scenario)[:MAX_PROBLEMS]),
        windows=tuple(_pack_window(folder, entry) for entry in _readable(folder, session)),
        answers=tuple(pack_answers(found) for found in session.answers if found.problem is None),
        kernels=record.kernels,
        profile=pack_profile(read_attribution(folder)),
        measures_expert_use="expert_use" in session.checks,
        expert_use=tuple(pack_use(folder)),
        ended_s=session.timing.took_s if session.timing else 0.0,
    )


def _readable(folder: Path, session: Session) -> list[IndexLine]:
    """The windows that could be read; one that could not is already a problem of the session."""
    read = {window.run.source for window in session.windows}
    return [entry for entry in read_entries(folder) if str(folder / entry.file) in read]


def _pack_arm(arm: ArmRecord) -> ArmFacts:
    start = orjson.dumps([arm.python, arm.argv, dict(arm.env)], option=orjson.OPT_SORT_KEYS)
    facts = {name: _NOT_FACT.sub("?", value).replace("?", "_")[:120] for name, value in arm.facts.items()}
    return ArmFacts(facts=facts, start_sha256=hashlib.sha256(start).hexdigest())


def _place(entry: IndexLine | WindowEntry) -> dict[str, Any]:
    """The fields that say where a window stands."""
    fields = ("arm", "block", "start", "index", "role", "begun_s", "ended_s", "telemetry")
    return {name: getattr(entry, name) for name in fields}


def _pack_window(folder: Path, entry: IndexLine) -> WindowEntry:
    line = orjson.loads(NOT_JSON.sub(rb'\1"\2"', read_bytes(folder / entry.file)))
    return WindowEntry(record=reduce_record(line), **_place(entry))


def reduce_record(line: Mapping[str, Any]) -> dict[str, Any]:
    """Keep of one line of the load generator what a verdict reads; texts become marks that say only whether there was one."""
    kept = {name: line[name] for name in RECORD_FIELDS if line.get(name) is not None}
    info = line.get("server_info")
    model = info.get("model_path") if isinstance(info, dict) else line.get("model_id")
    if isinstance(model, str):
        kept["model_id"] = re.sub(r"[^A-Za-z0-9_.+-]", "_", model.rstrip("/").rsplit("/", 1)[-1])[:64]
    for field, clean in (("errors", clean_text), ("generated_texts", lambda text: "x" if text else "")):
        if isinstance(kept.get(field), list):
            kept[field] = [clean(str(text or "")) for text in kept[field]]
    return kept


def clean_text(text: str) -> str:
    """Make one line of printable characters that the schema accepts."""
    return "".join(char if _is_printable(char) else " " for char in text).strip()[:MAX_TEXT]


def _is_printable(char: str) -> bool:
    """No control or formatting character, and none that this version of Unicode does not know."""
    category = unicodedata.category(char)
    return category[0] != "C" and category not in {"Zl", "Zp"}


def unpack_folder(
    handoff: Handoff, scenario_text: str, folder: Path, *, scenarios_in_pr: int = 1, has_base: bool = True
) -> None:
    """Write a checked hand-off as a new result folder, under names that this side chooses, with this side's scenario.

    How many scenarios share the error budget, and whether a base can be built, is this side's say too.

    What was measured with another workload stays so: `session.json` keeps the hash that the hand-off names, and the verdict
    refuses a session whose hash is not the scenario's.
    """
    if folder.exists():
        raise HandoffError(f"{folder}: is there already; give a folder that does not exist")
    scenario = parse_scenario(scenario_text, handoff.scenario)
    rules = scenario.equivalence
    for entry in handoff.answers:
        check_question(entry, rules)
    arms = {
        arm: ArmRecord(label=arm.value, python=found.start_sha256, argv=(), env={}, facts=dict(found.facts))
        for arm, found in handoff.arms.items()
    }
    record = SessionRecord(
        schema=1,
        perfgate=handoff.perfgate,
        scenario=handoff.scenario,
        workload_hash=handoff.workload_hash,
        purpose=handoff.purpose,
        begun_utc=handoff.begun_utc,
        arms=arms,
        model={},
        # Whether answers are asked for is this side's say, like everything else in the scenario.
        checks=_list_checks(handoff, rules),
        scenarios_in_pr=scenarios_in_pr,
        has_base=has_base,
        kernels=handoff.kernels,
        notes=(HANDED_OVER, *_tell_unread(handoff, scenario.server.engine)),
    )
    writer = ResultWriter.create(folder, record, scenario_text)
    for window in handoff.windows:
        writer.add_window(orjson.dumps(window.record, option=orjson.OPT_SORT_KEYS) + b"\n", **_place(window))
    for entry in handoff.answers:
        unpack_answers(entry, folder)
    for used in handoff.expert_use:
        unpack_use(used, folder)
    last_s = max([handoff.ended_s, *(window.ended_s for window in handoff.windows)])
    for problem in handoff.problems:
        writer.add_problem(problem, last_s)
    if handoff.profile is not None:
        unpack_profile(handoff.profile, folder)
    writer.add_event("session_ended" if handoff.is_complete else "handed_over", last_s)


def _list_checks(handoff: Handoff, rules: Equivalence) -> tuple[Check, ...]:
    """What must be there to be judged. Whether expert use was measured is the other side's say; what is left out shows."""
    answers: tuple[Check, ...] = ("equivalence",) if rules.enabled else ()
    return (*answers, "expert_use") if handoff.measures_expert_use else answers


def _tell_unread(handoff: Handoff, name: str) -> Iterator[str]:
    """That the version of an arm's engine is not one that perfgate knows; what was found in its source stayed behind."""
    engine = ENGINES[name]
    for version in dict.fromkeys(found.facts.get(engine.package, "") for found in handoff.arms.values()):
        if (unread := engine.insides.describe_unread(version)) is not None:
            yield f"{engine.package} {version} {unread}: the log of the job that measured says what was found in its source"


def unpack_handoffs(
    handoffs: Sequence[Handoff],
    scenarios: tuple[str, ...],
    out: Path,
    *,
    scenarios_in_pr: int = 1,
    has_base: bool = True,
) -> list[Path]:
    """Write each hand-off as a result folder named after its scenario, and return the folders.

    `scenarios` are names or files of this side; without any, those that ship with perfgate. `scenarios_in_pr` of them share one
    error budget, and `has_base` says whether a base can be built here. Raise HandoffError for a scenario that is none of them.
    """
    texts = read_scenarios(scenarios)
    folders = []
    for handoff in handoffs:
        if handoff.scenario not in texts:
            known = ", ".join(sorted(texts))
            raise HandoffError(f"scenario {handoff.scenario} is not one of this side's ({known}); nothing else is judged")
        folders.append(out / handoff.scenario)
        unpack_folder(handoff, texts[handoff.scenario], folders[-1], scenarios_in_pr=scenarios_in_pr, has_base=has_base)
    return folders


def read_scenarios(given: tuple[str, ...]) -> dict[str, str]:
    """Read the texts of the scenarios that may be judged here, by name: those given, else those that ship with perfgate."""
    read = [read_scenario_text(name) for name in given or list_scenarios()]
    return {parse_scenario(text, source).name: text for text, source in read}


def find_scenario(given: Sequence[str], name: str) -> str:
    """What a command of this side calls a scenario: the file that was given for it, or the name under which it ships."""
    return next((word for word in given if name in read_scenarios((word,))), name)
