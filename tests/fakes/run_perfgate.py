"""The real command line in a process of its own, with the fake engine in place of SGLang: it can be killed at any moment.

FAKE_PROCESSES=1 gives servers and load generator processes of their own, too; else they are threads of this one.
FAKE_USES_GPU=1 makes the fake engine one that uses the machine's GPU. FAKE_PORT is the port that every server is given, free or
not.
"""

import os
import pkgutil
import sys
from dataclasses import replace

from perfgate.cli import main
from perfgate.engines import table as engines
from perfgate.serving import measure
from perfgate.serving.engine import server
from perfgate.serving.experts import expert_probe
from tests.fakes.engine.in_process import THREADED
from tests.fakes.requests import build_fake_engine

engines.ENGINES["sglang-cpu"] = replace(build_fake_engine(), uses_gpu="FAKE_USES_GPU" in os.environ)
measure.require_engine = lambda *_: None
if "FAKE_PORT" in os.environ:
    server.find_free_port = lambda: int(os.environ["FAKE_PORT"])
if "FAKE_PROCESSES" not in os.environ:
    server.POLL_S = 0.02
    expert_probe.HOLD_S = 0.01
    for name, part in THREADED.items():
        place, _, last = name.rpartition(".")
        setattr(pkgutil.resolve_name(place), last, part)
sys.exit(main(sys.argv[1:]))
