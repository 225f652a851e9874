#!/usr/bin/env bash
# propose-release.sh RECORDS: propose what `perfgate engine bump` wrote into the folder RECORDS. Runs in the checkout.
set -euo pipefail
# A job that ran the release wrote them: only records are taken, and a person reads them as code.
find "$1" -maxdepth 1 -type f -name 'sglang-*.json' -exec cp -- {} benchmarks/engines/results/ \;
python -P -m perfgate engine table benchmarks/engines/results > docs/reference/compatibility.md
exec bash "$(dirname "$0")/propose.sh" perfgate/engine "engines: try the next release of SGLang" \
  "engines: what the next release of SGLang can do" \
  "CONTRIBUTING.md says what else belongs to a new release; until it is there, a test fails." \
  benchmarks/engines/results docs/reference/compatibility.md
