#!/usr/bin/env bash
# install.sh PYTHON VENV: installs requirements/lock.txt and fedpersonal itself into the folder VENV.
# VENV/installed is a copy of the lock that was installed; nothing else counts as installed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
venv=$2
lock=requirements/lock.txt

# Other environments' settings would send the packages elsewhere.
unset PYTHONHOME PYTHONPATH PIP_PREFIX PIP_TARGET PIP_USER VIRTUAL_ENV
pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check --no-cache-dir "$@"; }
# The checkout itself, as a path that Bazel's own paths precede, and the command fedpersonal.
install_checkout() {
  PYTHONWARNINGS=ignore pip install --no-deps --no-build-isolation \
    --config-settings editable_mode=compat --editable .
}

# Switching branches changes the lock's time, seldom its content.
if cmp -s "$lock" "$venv/installed"; then
  [ -x "$venv/bin/fedpersonal" ] || install_checkout
  touch "$venv/installed"
  exit
fi

echo "Installing the pinned packages into $venv (1 to 2 minutes)" >&2

rm -rf "$venv/installed" "$venv"
"$python" -m venv "$venv"
cp "$lock" "$venv/installing"

# Two packages are published as source only, and a Python may bring a pip too old for some wheels:
# these three come first, pinned like everything else.
awk '/^[^ #]/ {wanted = /^(pip|setuptools|wheel)==/} wanted' "$lock" > "$venv/installers.txt"
pip install --no-deps --require-hashes -r "$venv/installers.txt"
pip install --no-deps --require-hashes --no-build-isolation -r "$lock"

install_checkout
mv "$venv/installing" "$venv/installed"
