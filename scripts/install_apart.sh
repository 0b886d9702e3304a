#!/usr/bin/env bash
# install_apart.sh VENV LOCK: installs a lock into a separate environment in the folder VENV.
# VENV/installed is a copy of the installed lock.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
lock=$2

if cmp -s "$lock" "$venv/installed"; then
  touch "$venv/installed"
  exit
fi

stack_python=$(scripts/find_python.sh fetch)
echo "Installing $lock into $venv" >&2
unset PYTHONHOME PYTHONPATH PIP_PREFIX PIP_TARGET PIP_USER VIRTUAL_ENV
rm -rf "$venv"
"${stack_python#* }" -m venv "$venv"
"$venv/bin/python" scripts/install_lock.py "$lock"
cp "$lock" "$venv/installed"
