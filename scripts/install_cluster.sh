#!/usr/bin/env bash
# install_cluster.sh VENV: adds Ray, from the stack's lock, to an environment of install.sh.
# VENV/cluster_installed is a copy of the installed lock.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
lock=requirements/cluster_lock.txt
if cmp -s requirements/today.txt "$venv/installed"; then lock=requirements/today_cluster.txt; fi

if cmp -s "$lock" "$venv/cluster_installed"; then
  touch "$venv/cluster_installed"
  exit
fi

version=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$version" = 3.9 ]; then
  echo "Ray needs Python 3.10 or later; $venv has $version. Type: make clean; make cluster PYTHON=<path>" >&2
  exit 2
fi

echo "Installing Ray into $venv" >&2
unset PYTHONHOME PYTHONPATH PIP_PREFIX PIP_TARGET PIP_USER VIRTUAL_ENV
"$venv/bin/python" scripts/install_lock.py "$lock"
cp "$lock" "$venv/cluster_installed"
