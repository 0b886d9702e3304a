#!/usr/bin/env bash
# install_apart.sh VENV LOCK: installs a lock into the folder VENV, an environment of its own.
# VENV/installed is a copy of the lock that was installed.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
lock=$2

if cmp -s "$lock" "$venv/installed"; then
  touch "$venv/installed"
  exit
fi

found=$(scripts/find_python.sh fetch)
echo "Installing $lock into $venv" >&2
unset PYTHONHOME PYTHONPATH PIP_PREFIX PIP_TARGET PIP_USER VIRTUAL_ENV
rm -rf "$venv"
"${found#* }" -m venv "$venv"
"$venv/bin/python" scripts/install_lock.py "$lock"
cp "$lock" "$venv/installed"
