#!/usr/bin/env bash
# install.sh VENV: installs a stack's lock and fedpersonal itself into the folder VENV.
# VENV/installed is a copy of the lock that was installed; nothing else counts as installed. Another
# stack than the one installed is put there only where the variable STACK is set.
set -euo pipefail
cd "$(dirname "$0")/.."
found=$(scripts/find_python.sh fetch)
stack=${found%% *}
python=${found#* }
venv=$1
locks=(requirements/lock.txt requirements/today.txt)
if [ "$stack" = tff ]; then lock=${locks[0]}; else lock=${locks[1]}; fi
if [ "${STACK-}" ]; then locks=("$lock"); fi

# Other environments' settings would send the packages elsewhere.
unset PYTHONHOME PYTHONPATH PIP_PREFIX PIP_TARGET PIP_USER VIRTUAL_ENV
# The checkout itself, as a path that Bazel's own paths precede, and the command fedpersonal.
install_checkout() {
  PYTHONWARNINGS=ignore "$venv/bin/python" -m pip --quiet --disable-pip-version-check --no-cache-dir \
    install --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
}

# Switching branches changes the locks' times, seldom their content.
for known in "${locks[@]}"; do
  if cmp -s "$known" "$venv/installed"; then
    [ -x "$venv/bin/fedpersonal" ] || install_checkout
    touch "$venv/installed"
    exit
  fi
done

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
here="Python $version on $(uname -s) $(uname -m)"
why="TensorFlow Federated can be had for $here"
if [ "$stack" = today ]; then why="TensorFlow Federated cannot be had for $here"; fi
if [ "${STACK-}" ]; then why="STACK=$STACK was asked for"; fi
echo "Installing the stack $stack into $venv (1 to 2 minutes): $why" >&2

rm -rf "$venv/installed" "$venv"
"$python" -m venv "$venv"
cp "$lock" "$venv/installing"

# Some packages are published as source only, and a Python may bring a pip too old for some wheels:
# these three come first, pinned like everything else.
awk '/^[^ #]/ {wanted = /^(pip|setuptools|wheel)==/} wanted' "$lock" > "$venv/installers.txt"
"$venv/bin/python" scripts/install_lock.py "$venv/installers.txt"
"$venv/bin/python" scripts/install_lock.py "$lock" --no-build-isolation

install_checkout
mv "$venv/installing" "$venv/installed"
