"""What readers noticed of runs, files and drivers, as sentences: what happened, and what to do."""

from __future__ import annotations

from perfgate.core import Remark, RemarkKind
from perfgate.evidence import Damage, DamageKind, DriverProblem

_REMARKS = {
    RemarkKind.NO_REQUEST: "no request completed: read the server's and the load generator's logs, then measure again",
    RemarkKind.INCOMPLETE: "{found} of {due} requests completed: find out why in the server's log, then measure again",
    RemarkKind.FAILED: "{found} of {due} requests failed ({detail}): read the server's log, then measure again",
    RemarkKind.NO_FIRST_TOKEN: "{found} of {due} requests never saw a first token: read the server's log, then measure again",
    RemarkKind.NO_OUTPUT: "{found} of {due} requests have no output token: read the server's log, then measure again",
    RemarkKind.NO_TEXT: "{found} of {due} requests have no text: read the server's log, then measure again",
    RemarkKind.UNCOUNTED: (
        "no output token was counted: the load generator saw no answer; check the endpoint and the server's log"
    ),
    RemarkKind.LOST_TEXT: (
        "the text received makes {found} tokens of the {due} that were counted: requests failed inside their streams;"
        " read the server's log and measure with --output-details"
    ),
    RemarkKind.ZERO_TTFT: (
        "mean TTFT is 0 ms: no first token was seen, so requests failed inside their streams; read the server's log"
    ),
    RemarkKind.ZERO_ITL: "ITL is 0 ms: no token came after a first one; drop --disable-stream, or read the server's log",
    RemarkKind.FEW_GAPS: (
        "{found} inter-token gaps for {due} due: requests broke off, or the server sent several tokens at once, as one"
        " without processor time does; stream every token, stop other work on the machine, then measure again"
    ),
    RemarkKind.SHARED_EVENT: "{found} inter-token gaps for {due} due: some tokens shared an event",
    RemarkKind.SPECULATIVE: (
        "speculative decoding behind an OpenAI endpoint: a gap holds several tokens, so ITL is the printed one"
    ),
    RemarkKind.NO_DURATION: "no duration: throughput cannot be checked; give the whole output of the load generator",
    RemarkKind.OTHER_RATE: (
        "{detail} says {found:.2f} where count over duration makes {due:.2f}: the output was edited or mixed; measure again"
    ),
    RemarkKind.CUT_OFF: "{found} requests were cut off at its end and do not count",
    RemarkKind.CANCELLED: "the run was cancelled or lost records; measure again",
    RemarkKind.OPEN_TABLE: "the table has no closing line: the log was cut off, so paste all of it",
    RemarkKind.NO_TABLE: "no result table after line {found}: the client failed; read its output there, then measure again",
    RemarkKind.COLD: (
        "no request ended in the first {found:.1f} s, where the mean one takes {due:.1f} s: the server began cold or behind"
        " a full queue; discard the first run after a start"
    ),
    RemarkKind.OF_SESSION: "{detail}",
}
_DAMAGE = {
    DamageKind.MISSING: "{file} is missing although the index names it: the folder was changed after the run; measure again",
    DamageKind.CHANGED: "{file} does not match its digest: the raw data was changed after the run; measure again",
    DamageKind.TORN_PACK: "{file} cannot be read: {detail} is damaged before its end; copy it again",
    DamageKind.NO_RESULT: "the load generator's output is no result: {detail}",
    DamageKind.NO_CHOICES: "{file}: {detail}; the folder was damaged, measure again",
    DamageKind.NO_WINDOWS: "{file} has no window of block {detail}, which ended: the folder was changed; measure again",
    DamageKind.NO_EVENTS: "{file} is missing although windows were measured: what voided them stood there; measure again",
    DamageKind.OTHER_ARM: "{file} counts start {detail} for another arm than its server: the folder was changed; measure again",
    DamageKind.DISORDERED: "{file} is numbered against the order of time: the folder was changed; measure again",
    DamageKind.OTHER_TEXT: "{file} is not the one that was fixed before the first window ({detail}); put its text back",
    DamageKind.ONE_SLOWED: "{file} has equal arms, of which the {detail} alone was slowed down: it was changed; measure again",
}


def describe_remark(remark: Remark) -> str:
    """What was noticed of a run."""
    return _REMARKS[remark.kind].format(found=remark.found, due=remark.due, detail=remark.detail)


def describe_damage(damage: Damage) -> str:
    """What became of a file."""
    return _DAMAGE[damage.kind].format(file=damage.file, detail=damage.detail)


def describe_driver_problem(problem: DriverProblem) -> str:
    """What the driver wrote down, of a matrix with its round."""
    return problem.message if problem.round is None else f"round {problem.round}: {problem.message}"
