#!/bin/sh
# Installs perfgate, the engine and GitHub's runner on a machine, from commits and files that a person has reviewed:
#
#     sh install.sh COMMIT RUNNER_VERSION RUNNER_SHA256
#
# COMMIT are all 40 digits of a commit of perfgate; version and digest of the runner (2.329.0 or newer, linux-x64) stand on its
# release's page. As root, as often as wanted; a second run brings everything to what it names. It takes no package of perfgate
# from an index: the commit says what is installed, and its own lists say which files of which digest are needed.
#
# PERFGATE_SOURCE   where to clone from (default: https://github.com/perfgate/sglang-perfgate)
# PERFGATE_PYTHON   a Python 3.11 (default: python3.11); the lists are of files for it, on x86-64
# PERFGATE_ENGINE   a list of exact files with their digests that has the engine and all that perfgate needs and is built with
#                   (default: .github/requirements-engine.txt of the commit; empty: no engine, for a host that has its own)
# PERFGATE_RUNNER   address of the runner's archive, for a mirror (default: GitHub's release)
set -eu

fail() { echo "install.sh: $*" >&2; exit 2; }
is_hex() { [ "${#1}" -eq "$2" ] && [ -z "$(printf %s "$1" | tr -d 0-9a-f)" ]; }

[ "$#" -eq 3 ] || fail "usage: install.sh COMMIT RUNNER_VERSION RUNNER_SHA256"
commit=$1 version=$2 digest=$3
is_hex "$commit" 40 || fail "COMMIT: give all 40 digits, in small letters; a shorter one can name another commit tomorrow"
is_hex "$digest" 64 || fail "RUNNER_SHA256: give the 64 digits that the release's page shows for linux-x64"
case "${PERFGATE_ENGINE-}" in
    '' | /*) ;;
    *) fail "PERFGATE_ENGINE: give the path of a list of exact files with their digests; a name would be what an index has today" ;;
esac
[ "$(id -u)" -eq 0 ] || fail "run it as root: what jobs use, no job may change"
source=${PERFGATE_SOURCE:-https://github.com/perfgate/sglang-perfgate}
python=${PERFGATE_PYTHON:-python3.11}
lists=/opt/perfgate/src/.github
engine=${PERFGATE_ENGINE-$lists/requirements-engine.txt}
archive=${PERFGATE_RUNNER:-https://github.com/actions/runner/releases/download/v$version/actions-runner-linux-x64-$version.tar.gz}
for tool in git "$python" curl tar openssl; do
    command -v "$tool" >/dev/null || fail "$tool is not installed; on Debian: apt-get install git python3.11-venv curl openssl"
done
[ "$("$python" -c 'import sys; print(sys.version_info[:2] == (3, 11))')" = True ] || fail "$python is no Python 3.11; set PERFGATE_PYTHON"
umask 022

echo "1/4 perfgate $commit from $source"
[ -d /opt/perfgate/src/.git ] || git clone --quiet --no-checkout "$source" /opt/perfgate/src
git -C /opt/perfgate/src cat-file -e "$commit^{commit}" 2>/dev/null || git -C /opt/perfgate/src fetch --quiet "$source" "$commit"
git -C /opt/perfgate/src -c advice.detachedHead=false checkout --quiet --force --detach "$commit"
[ "$(git -C /opt/perfgate/src rev-parse HEAD)" = "$commit" ] || fail "$source: has no commit $commit"
git -C /opt/perfgate/src clean --quiet -ffdx

echo "2/4 its environment, by hash"
[ -x /opt/perfgate/bin/python ] || "$python" -m venv /opt/perfgate
pip="/opt/perfgate/bin/python -m pip --quiet --disable-pip-version-check"
# The engine's list has the versions that it and perfgate share, so that one list is installed, or the two without it.
set -- "${engine:-$lists/requirements.txt}"
[ -n "$engine" ] || set -- "$@" "$lists/requirements-build.txt"
for list; do
    [ -f "$list" ] || fail "$list: is no file; PERFGATE_ENGINE names the list of the engine's files"
    $pip install --require-hashes --only-binary :all: --requirement "$list"
done
$pip install --no-index --no-deps --no-build-isolation --force-reinstall /opt/perfgate/src
ln -sfn /opt/perfgate/bin/perfgate /usr/local/bin/perfgate
echo "$commit" > /opt/perfgate/commit

echo "3/4 GitHub's runner $version"
if [ "$(cat /opt/perfgate/runner-version 2>/dev/null)" != "$version $digest" ]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    curl --fail --silent --show-error --location --output "$scratch/runner.tar.gz" "$archive"
    echo "$digest  $scratch/runner.tar.gz" | sha256sum --check --quiet || fail "$archive: has another digest than $digest"
    rm -rf /opt/actions-runner
    mkdir /opt/actions-runner
    tar --extract --gzip --no-same-owner --file "$scratch/runner.tar.gz" --directory /opt/actions-runner
    echo "$version $digest" > /opt/perfgate/runner-version
fi

echo "4/4 $(perfgate --version); next: perfgate runner init-host --repository OWNER/NAME"
