#!/usr/bin/env bash
# install_docs.sh PYTHON VENV: installs requirements/docs_lock.txt, what builds the site of docs/, into
# the folder VENV. VENV/installed is a copy of the lock that was installed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
venv=$2
lock=requirements/docs_lock.txt

if cmp -s "$lock" "$venv/installed"; then
  touch "$venv/installed"
  exit
fi

echo "Installing MkDocs into $venv" >&2
unset PYTHONHOME PYTHONPATH PIP_PREFIX PIP_TARGET PIP_USER VIRTUAL_ENV
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip --quiet --disable-pip-version-check --no-cache-dir \
  install --no-deps --require-hashes -r "$lock"
cp "$lock" "$venv/installed"
