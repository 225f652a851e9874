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
git push --quiet --force "${GITHUB_SERVER_URL:-https://github.com}/${GITHUB_REPOSITORY:?}.git" "HEAD:refs/heads/$branch"
# By owner and branch: a fork may have a pull request from a branch of the same name, which is no proposal of this repository.
open="repos/$GITHUB_REPOSITORY/pulls?state=open&head=${GITHUB_REPOSITORY%%/*}:$branch"
if [ -z "$(gh api "$open" --jq '.[].number')" ]; then
  gh pr create --head "$branch" --base main --title "baselines: what the main branch measured" \
    --body "Noise bands and levels from the nightly run ${GITHUB_RUN_ID:?}. Review them as code: \`perfgate baseline diff\` shows what changed. Checks of a pull request that a workflow opened start when somebody approves them; where no button asks for that, close and reopen it."
fi
