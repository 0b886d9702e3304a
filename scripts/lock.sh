#!/usr/bin/env bash
# lock.sh PYTHON [OPTION...]: resolves setup.py and requirements/requirements.in, for every
# supported Python at once, into requirements/lock.txt, and each other NAME.in of requirements/ and
# requirements/rivals/ into NAME_lock.txt beside it. Versions stay as they are unless they must move;
# --upgrade moves them all.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1
shift
if ! build/uv/bin/uv --version >/dev/null 2>&1; then
  rm -rf build/uv
  "$python" -m venv build/uv
  build/uv/bin/python -m pip --quiet --disable-pip-version-check --no-cache-dir install uv==0.13.8
fi

resolve() {
  UV_CUSTOM_COMPILE_COMMAND="make lock" build/uv/bin/uv --quiet pip compile "$@" \
    --universal --generate-hashes --python "$python" --no-emit-index-url --no-config --no-cache
}
resolve setup.py --all-extras requirements/requirements.in --override requirements/overrides.txt \
  --python-version 3.9 -o requirements/lock.txt "$@"
resolve requirements/cluster.in --constraint requirements/lock.txt \
  --override requirements/cluster_overrides.txt \
  --python-version 3.10 -o requirements/cluster_lock.txt "$@"
resolve requirements/docs.in --python-version 3.9 -o requirements/docs_lock.txt "$@"
resolve requirements/benchmark.in --constraint requirements/lock.txt --no-emit-package numpy \
  --python-version 3.9 -o requirements/benchmark_lock.txt "$@"
for rival in requirements/rivals/*.in; do
  resolve "$rival" --python-version 3.11 -o "${rival%.in}_lock.txt" "$@"
done
