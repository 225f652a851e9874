#!/usr/bin/env bash
# propose.sh BRANCH SUBJECT TITLE BODY PATH...: push what changed at the paths of this checkout as one commit on a branch, and
# open a pull request unless one is open.
set -euo pipefail
branch="$1" subject="$2" title="$3" body="$4"
shift 4
if [ -z "$(git status --porcelain -- "$@")" ]; then
  echo "nothing changed"
  exit 0
fi
git config user.name "github-actions[bot]"
git config user.email "41898282+github-actions[bot]@users.noreply.github.com"
git checkout --quiet -B "$branch"
git add -- "$@"
git commit --quiet --message "$subject"
gh auth setup-git
git push --quiet --force "${GITHUB_SERVER_URL:-https://github.com}/${GITHUB_REPOSITORY:?}.git" "HEAD:refs/heads/$branch"
# By owner and branch: a fork may have a pull request from a branch of the same name, which is no proposal of this repository.
open="repos/$GITHUB_REPOSITORY/pulls?state=open&head=${GITHUB_REPOSITORY%%/*}:$branch"
if [ -z "$(gh api "$open" --jq '.[].number')" ]; then
  gh pr create --head "$branch" --base main --title "$title" \
    --body "$body From run ${GITHUB_RUN_ID:?}. Checks of a pull request that a workflow opened start when a person approves them; where no button asks for that, close and reopen it."
fi
