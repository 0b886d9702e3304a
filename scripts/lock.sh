#!/usr/bin/env bash
# lock.sh resolve [OPTION...]: resolves setup.py and requirements/requirements.in, for every
# supported Python at once, into requirements/lock.txt (TensorFlow Federated's stack) and
# requirements/today.txt (today's), and each other NAME.in of requirements/ and requirements/rivals/
# into NAME_lock.txt in its folder; Ray for today's stack into today_cluster.txt. constraints.txt has
# the pins of both stacks that a wheel of fedpersonal needs. Versions change only if they must;
# --upgrade changes all.
# lock.sh wheels: fails and lists the pins of today's stack for which the registry lacks a wheel.
set -euo pipefail
cd "$(dirname "$0")/.."

task=$1
shift
stack_python=$(scripts/find_python.sh fetch)
python=${stack_python#* }
if ! build/uv/bin/uv --version >/dev/null 2>&1; then
  rm -rf build/uv
  "$python" -m venv build/uv
  build/uv/bin/python -m pip --quiet --disable-pip-version-check --no-cache-dir install uv==0.13.8
fi
uv() { build/uv/bin/uv --quiet pip "$@" --python "$python" --no-config --no-cache --system-certs; }

resolve() {
  UV_CUSTOM_COMPILE_COMMAND="make lock" uv compile "$@" \
    --universal --generate-hashes --no-emit-index-url
}
extras=(--extra datasets --extra language)
# constrain STACK LOCK OVERRIDES VERSION: prints a stack's pins with the stack's marker in setup.py.
constrain() {
  local marker
  marker=$(sed -n "s/^$1 = '\(.*\)'$/\1/p" setup.py | tr \" \')
  grep '^recbole==' requirements/requirements.in | uv compile setup.py - "${extras[@]}" --universal \
    --no-header --no-annotate --constraint "$2" --override "$3" --python-version "$4" |
    sed "s/ ; \(.*\)/ ; (\1) and ($marker)/; t; s/\$/ ; $marker/"
}
resolve_all() {
  resolve setup.py "${extras[@]}" requirements/requirements.in \
    --override requirements/overrides.txt --python-version 3.9 -o requirements/lock.txt "$@"
  resolve requirements/cluster.in --constraint requirements/lock.txt \
    --override requirements/cluster_overrides.txt \
    --python-version 3.10 -o requirements/cluster_lock.txt "$@"
  resolve setup.py "${extras[@]}" requirements/requirements.in \
    --override requirements/today_overrides.txt --python-version 3.11 -o requirements/today.txt "$@"
  resolve requirements/cluster.in --constraint requirements/today.txt \
    --python-version 3.11 -o requirements/today_cluster.txt "$@"
  {
    echo "# Made by \`make lock\`: the locks' versions of what a wheel of fedpersonal needs."
    { constrain TFF requirements/lock.txt requirements/overrides.txt 3.9
      constrain TODAY requirements/today.txt requirements/today_overrides.txt 3.11; } | LC_ALL=C sort
  } > build/constraints.txt
  mv build/constraints.txt requirements/constraints.txt
  resolve requirements/docs.in --python-version 3.9 -o requirements/docs_lock.txt "$@"
  resolve requirements/benchmark.in --constraint requirements/lock.txt --no-emit-package numpy \
    --python-version 3.9 -o requirements/benchmark_lock.txt "$@"
  for rival in requirements/rivals/*.in; do
    resolve "$rival" --python-version 3.11 -o "${rival%.in}_lock.txt" "$@"
  done
}

# has_wheels SYSTEM VERSION REQUIREMENT...: succeeds if all can be installed on a system without a
# compiler. Promise, a few Python files, has no wheel, but builds on any machine.
has_wheels() {
  uv install --dry-run --target build/nowhere --python-platform "$1" --python-version "$2" \
    --no-deps --only-binary :all: --no-binary promise "${@:3}" >/dev/null 2>&1
}
look_for_wheels() {
  local missing=0 lock system version pin
  for lock in requirements/today.txt requirements/today_cluster.txt; do
    for system in x86_64-manylinux_2_28 aarch64-manylinux_2_28 aarch64-apple-darwin; do
      for version in 3.11 3.12 3.13; do
        if has_wheels "$system" "$version" -r "$lock"; then
          echo "$lock: a wheel for each pin on $system, Python $version"
          continue
        fi
        missing=1
        echo "$lock: not a wheel for each pin on $system, Python $version:" >&2
        grep '^[^ #].*==' "$lock" | sed 's/ *\\$//' | while read -r pin; do
          has_wheels "$system" "$version" "$pin" || echo "  $pin" >&2
        done
      done
    done
  done
  return "$missing"
}

case $task in
  resolve) resolve_all "$@" ;;
  wheels) look_for_wheels ;;
esac
