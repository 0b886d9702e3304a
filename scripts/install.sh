#!/usr/bin/env bash
# install.sh VENV: installs a stack's lock and fedpersonal into the folder VENV.
# VENV/installed is a copy of the installed lock. Without the variable STACK, an installed stack stays.
set -euo pipefail
cd "$(dirname "$0")/.."
stack_python=$(scripts/find_python.sh fetch)
stack=${stack_python%% *}
python=${stack_python#* }
venv=$1
locks=(requirements/lock.txt requirements/today.txt)
if [ "$stack" = tff ]; then lock=${locks[0]}; else lock=${locks[1]}; fi
if [ "${STACK-}" ]; then locks=("$lock"); fi

# Settings of other environments would redirect the packages.
unset PYTHONHOME PYTHONPATH PIP_PREFIX PIP_TARGET PIP_USER VIRTUAL_ENV
# Installs the checkout, as a path after those of Bazel, and the command fedpersonal.
install_checkout() {
  PYTHONWARNINGS=ignore "$venv/bin/python" -m pip --quiet --disable-pip-version-check --no-cache-dir \
    install --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
}

# Switching branches changes the locks' times, but seldom their content.
for candidate in "${locks[@]}"; do
  if cmp -s "$candidate" "$venv/installed"; then
    [ -x "$venv/bin/fedpersonal" ] || install_checkout
    touch "$venv/installed"
    exit
  fi
done

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
here="Python $version on $(uname -s) $(uname -m)"
why="TensorFlow Federated can be had for $here"
if [ "$stack" = today ]; then why="TensorFlow Federated cannot be had for $here"; fi
if [ "${STACK-}" ]; then why="STACK=$STACK is set"; fi
echo "Installing the stack $stack into $venv (1 to 2 minutes): $why" >&2

rm -rf "$venv/installed" "$venv"
"$python" -m venv "$venv"
cp "$lock" "$venv/installing"

# Packages without wheels need setuptools and wheel, and the pip of a Python may be too old for
# wheels of others: these three are installed first, pinned like everything else.
awk '/^[^ #]/ {is_installer = /^(pip|setuptools|wheel)==/} is_installer' "$lock" > "$venv/installers.txt"
"$venv/bin/python" scripts/install_lock.py "$venv/installers.txt"
"$venv/bin/python" scripts/install_lock.py "$lock" --no-build-isolation

install_checkout
mv "$venv/installing" "$venv/installed"
