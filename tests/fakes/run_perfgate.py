"""The real command line in a process of its own, with the fake engine in place of SGLang: it can be killed at any moment."""

import sys

from perfgate.cli import main
from perfgate.serving import engines, measure
from tests.fakes.requests import build_fake_engine

engines.ENGINES["sglang-cpu"] = build_fake_engine()
measure.require_engine = lambda *_: None
sys.exit(main(sys.argv[1:]))
