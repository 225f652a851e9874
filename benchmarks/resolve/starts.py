"""Hold what is resolved on a made-up H200 against what a server on a real one reported of itself.

    python -m benchmarks.resolve.starts

A recorded session keeps every setting of its servers as text. The same command line is resolved here, and each
setting compared.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

from perfgate.engines.sglang import SGLANG
from perfgate.resolution.arms import find_source
from perfgate.resolution.ask import ask_arms
from perfgate.resolution.table import GPUS, MODELS
from perfgate.results.raw.pack import list_raw, read_raw
from perfgate.results.server_info import load_infos

SESSION = "benchmarks/h200/serving/routed/mxfp4-closed-c16-aa-1"
RELEASE, SHAPE, GPU = "0.5.16", "gpt-oss-20b", "h200"
ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results")
# Choices by what the server calls them.
NAMES = {
    "attention_backend": "attention_prefill",
    "sampling_backend": "sampling",
    "chunked_prefill_size": "chunked_prefill",
    "moe_runner_backend": "moe_runner",
}


def read_weights_gb(folder: Path) -> float:
    """What the first server of a session says that its weights took, in GB as it counts them."""
    log = read_raw(folder / list_raw(folder, "logs/*base*")[0]).decode("utf-8", "replace")
    return float(re.findall(r"Load weight end\..* mem usage=([0-9.]+) GB", log)[0])


def main() -> None:
    """Resolve the recorded command line, and write what is equal and what is not."""
    folder = ROOT / SESSION
    settings = load_infos(folder)[0].settings
    words = tomllib.loads((folder / "scenario.toml").read_text(encoding="utf-8"))["server"]["args"]
    model = replace(MODELS[SHAPE], args=(*words, *SGLANG.args))
    (arm,) = ask_arms([find_source(RELEASE, sys.executable, option="--base")], [model], [GPUS[GPU]])
    (reading,) = arm.readings.values()
    here = {**reading.flags, **{name: reading.choices[key] for name, key in NAMES.items()}}
    shared = sorted(settings.keys() & here.keys())
    differing = {name: [settings[name], str(here[name])] for name in shared if settings[name] != str(here[name])}
    found = {
        "session": SESSION,
        "settings": len(shared),
        "differing": differing,
        "weights_gib": round(reading.choices["weights_bytes"] / 2**30, 2),
        "weights_of_the_start_gb": read_weights_gb(folder),
    }
    (RESULTS / "start.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
