#!/usr/bin/env bash
# install_apart.sh PYTHON VENV LOCK: installs a lock into the folder VENV, an environment of its own.
# VENV/installed is a copy of the lock that was installed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
venv=$2
lock=$3

if cmp -s "$lock" "$venv/installed"; then
  touch "$venv/installed"
  exit
fi

echo "Installing $lock into $venv" >&2
unset PYTHONHOME PYTHONPATH PIP_PREFIX PIP_TARGET PIP_USER VIRTUAL_ENV
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip --quiet --disable-pip-version-check --no-cache-dir \
  install --no-deps --require-hashes -r "$lock"
cp "$lock" "$venv/installed"
