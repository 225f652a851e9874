#!/usr/bin/env bash
# Push what `perfgate github learn` changed as a branch, and open a pull request unless one is open. Runs in the checkout.
set -euo pipefail
if git diff --quiet -- perfgate/baselines && [ -z "$(git status --porcelain -- perfgate/baselines)" ]; then
  echo "nothing was learnt"
  exit 0
fi
branch="perfgate/baselines"
git config user.name "github-actions[bot]"
git config user.email "41898282+github-actions[bot]@users.noreply.github.com"
git checkout --quiet -B "$branch"
git add -- perfgate/baselines
git commit --quiet --message "baselines: add last night's measurements of the main branch"
gh auth setup-git
git push --quiet --force "https://github.com/${GITHUB_REPOSITORY:?}.git" "HEAD:refs/heads/$branch"
if [ -z "$(gh pr list --head "$branch" --state open --json number --jq '.[].number')" ]; then
  gh pr create --head "$branch" --base main --title "baselines: what the main branch measured" \
    --body "Noise bands and levels from the nightly run ${GITHUB_RUN_ID:?}. Review them as code: \`perfgate baseline diff\` shows what changed. Checks of a pull request that a workflow opened start when somebody approves them; where no button asks for that, close and reopen it."
fi
