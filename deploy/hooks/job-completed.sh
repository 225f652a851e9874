#!/usr/bin/env bash
# ACTIONS_RUNNER_HOOK_JOB_COMPLETED. Says what is left; root cleans up after the runner has ended.
exec "${PERFGATE:-/opt/perfgate/bin/perfgate}" runner hook completed
