#!/usr/bin/env bash
# Propose what `perfgate github learn` changed. Runs in the checkout.
set -euo pipefail
exec bash "$(dirname "$0")/propose.sh" perfgate/baselines "baselines: add last night's measurements of the main branch" \
  "baselines: what the main branch measured" \
  "Noise bands and levels of the main branch. Review them as code: \`perfgate baseline diff\` shows what changed." \
  perfgate/baselines
