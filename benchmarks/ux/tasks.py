"""Thirty-five tasks of people who know `perfgate --help` and nothing else: what each types first, and what counts as success.

The first 25 were put down by a reader who had not written the program, the others before any of what they ask for was built.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task.

    `command` is a line of shell in a folder that `run.py` prepares. It succeeds when it ends with one of `codes`, prints each
    of the regular expressions in `says` (standard output and error together) and none of those in `never`. With `width` it runs
    on a terminal so wide; where `fits`, no line may be longer, but for commands to paste. `stop-at WORDS` is not typed: it
    presses Ctrl-C once the words were printed.
    """

    number: int
    wish: str
    command: str
    says: tuple[str, ...]
    codes: tuple[int, ...] = (0,)
    never: tuple[str, ...] = ()
    width: int | None = None
    fits: bool = False


VERDICT = "PASS|IMPROVED|REGRESSION|INCONCLUSIVE|INVALID"
TASKS = (
    Task(
        number=1,
        wish="measure an environment variable",
        command="perfgate ab mine.toml --env OMP_NUM_THREADS=1",
        says=(VERDICT,),
        codes=(0, 1, 3),
    ),
    Task(number=2, wish="compare two files", command="perfgate compare off_1.txt on_1.txt", says=("INCONCLUSIVE",), codes=(3,)),
    Task(number=3, wish="which scenarios exist", command="perfgate scenarios", says=("cpu-moe",)),
    Task(
        number=4,
        wish="make my own scenario",
        command="perfgate scenarios new my.toml && perfgate scenarios show cpu-moe && test -s my.toml",
        says=(r"\[load\]",),
    ),
    Task(number=5, wish="list baselines", command="perfgate baseline list", says=("nvidia-h200",)),
    Task(
        number=6,
        wish="why is it INCONCLUSIVE",
        command="perfgate explain undecided",
        says=("INCONCLUSIVE",),
        never=("Nothing has to be done",),
    ),
    Task(number=7, wish="the verdict of a folder", command="perfgate check slower", says=("REGRESSION",), codes=(1,)),
    Task(
        number=8, wish="a report as a page", command="perfgate report slower --html page.html && test -s page.html", says=("",)
    ),
    Task(
        number=9,
        wish="JSON for jq",
        command="perfgate check slower --format json | python -c 'import json, sys; print(json.load(sys.stdin)[\"outcome\"])'",
        says=("REGRESSION",),
    ),
    Task(
        number=10,
        wish="completion of a scenario",
        command='COMP_WORDS="perfgate run c" COMP_CWORD=2 _PERFGATE_COMPLETE=bash_complete perfgate',
        says=("cpu-moe",),
    ),
    Task(number=11, wish="a typo in a command", command="perfgate repport", says=("'?report'?",), codes=(2,)),
    Task(
        number=12, wish="a typo in an option", command="perfgate report slower --htlm page.html", says=("--html",), codes=(2,)
    ),
    Task(number=13, wish="a typo in a scenario", command="perfgate run cpu-mo", says=("cpu-moe",), codes=(2,)),
    Task(number=14, wish="a folder that is missing", command="perfgate check nosuchdir", says=("nosuchdir",), codes=(2,)),
    Task(
        number=15,
        wish="Ctrl-C",
        command="stop-at measured perfgate run mine.toml --blocks 40",
        says=("--resume",),
        codes=(130,),
    ),
    Task(
        number=16,
        wish="go on with what was cut off",
        command="stop-at measured perfgate run mine.toml --blocks 4; perfgate run mine.toml --blocks 4 --resume",
        says=("perfgate-results/", "--resume"),
    ),
    Task(
        number=17,
        wish="no colour",
        command="NO_COLOR=1 perfgate check slower",
        says=("REGRESSION",),
        codes=(1,),
        never=(r"\x1b\[3[0-9]",),
        width=120,
    ),
    Task(number=18, wish="60 columns", command="perfgate check slower", says=("REGRESSION",), codes=(1,), width=60, fits=True),
    Task(
        number=19,
        wish="a pipe into head",
        command="perfgate check slower | head -1",
        says=("REGRESSION",),
        never=("BrokenPipe", "Traceback"),
    ),
    Task(
        number=20,
        wish="- as a stream",
        command="cat off_1.txt | perfgate show - && perfgate export slower --csv - | head -2 && test ! -e ./-",
        says=("Median ITL", "metric"),
    ),
    Task(number=21, wish="what goes on", command="perfgate run mine.toml --blocks 2", says=("block 1", "warmup", "measured")),
    Task(
        number=22,
        wish="how long will it take",
        command="perfgate run mine.toml --blocks 2",
        says=(r"about [\d.]+ (s|min)\S* left", r"(?s)perfgate-results/.*block 1"),
    ),
    Task(
        number=23,
        wish="compare two result folders",
        command="perfgate compare same slower",
        says=(VERDICT,),
        codes=(0, 1, 3),
    ),
    Task(number=24, wish="my earlier results", command="perfgate list", says=("perfgate-results/",)),
    Task(number=25, wish="is this machine fit", command="perfgate doctor", says=("GPU", "perfgate gate"), codes=(0, 1, 3)),
    Task(number=26, wish="see it work at once", command="perfgate demo", says=("REGRESSION", "perfgate explain")),
    Task(number=27, wish="see a void measurement", command="perfgate demo invalid", says=("INVALID", "perfgate explain")),
    Task(
        number=28,
        wish="two files side by side",
        command="perfgate show off_1.txt on_1.txt",
        says=("off_1.txt", "on_1.txt"),
    ),
    Task(
        number=29,
        wish="why is it INVALID",
        command="perfgate explain void",
        says=("INVALID", "experts", "troubleshooting"),
    ),
    Task(
        number=30,
        wish="a verdict in Python",
        command="python -c \"import perfgate; r = perfgate.load('slower'); print(r.verdict.outcome, len(r.windows))\"",
        says=(r"REGRESSION \d+",),
    ),
    Task(
        number=31,
        wish="a schema of verdict.json",
        command="perfgate schema > schema.json && perfgate check slower --format json > v.json; "
        "check-jsonschema --schemafile schema.json v.json",
        says=("ok",),
    ),
    Task(
        number=32,
        wish="JUnit for GitLab or Jenkins",
        command="perfgate check slower --format junit > junit.xml; "
        "python -c \"from xml.etree import ElementTree as E; print(E.parse('junit.xml').getroot().tag)\"",
        says=("testsuite",),
    ),
    Task(
        number=33,
        wish="show what guidellm wrote",
        command="perfgate show guidellm.json",
        says=("Output throughput", "Median TTFT"),
    ),
    Task(
        number=34,
        wish="more blocks than the scenario",
        command="perfgate ab mine.toml --env A=1 --blocks 3",
        says=(VERDICT, "block 3"),
        codes=(0, 1, 3),
    ),
    Task(number=35, wish="the page of the last result", command="perfgate report --open", says=(r"\.html",)),
)
