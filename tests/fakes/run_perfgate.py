"""The real command line in a process of its own, with the fake engine in place of SGLang: it can be killed at any moment.

FAKE_USES_GPU=1 makes the fake engine one that uses the machine's GPU. FAKE_PORT is the port that every server is given, free or
not.
"""

import os
import sys
from dataclasses import replace

from perfgate.cli import main
from perfgate.engines import table as engines
from perfgate.serving import measure
from perfgate.serving.engine import server
from tests.fakes.requests import build_fake_engine

engines.ENGINES["sglang-cpu"] = replace(build_fake_engine(), uses_gpu="FAKE_USES_GPU" in os.environ)
measure.require_engine = lambda *_: None
if "FAKE_PORT" in os.environ:
    server.find_free_port = lambda: int(os.environ["FAKE_PORT"])
sys.exit(main(sys.argv[1:]))
