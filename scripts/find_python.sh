#!/usr/bin/env bash
# find_python.sh [fetch]: prints a stack of packages, tff or today, and the first Python here that can
# run it; fails with the requirements if there is none. PYTHON and STACK restrict the search.
# With `fetch`, uv fetches a Python if there is none here.
set -u

fail() {
  echo "fedpersonal needs $1" >&2
  exit 2
}

machine="$(uname -s) on $(uname -m)"
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | awk '{print $2}')
has_glibc() { [ "$(printf '%s\n' "$1" "${glibc:-0}" | sort -V | head -n 1)" = "$1" ]; }

tff= today=
case $machine in
  "Linux on x86_64")
    if has_glibc 2.31; then tff=tff; fi
    if has_glibc 2.28; then today=today; fi
    ;;
  "Linux on aarch64") if has_glibc 2.28; then today=today; fi ;;
  "Darwin on arm64") today=today ;;
esac
systems="Linux on x86-64 or aarch64 with glibc 2.28 or later, or macOS on arm64"
fetched=3.11
versions="3.9 to 3.13"
case ${STACK-} in
  "") ;;
  tff) today= systems="for STACK=tff Linux on x86-64 with glibc 2.31 or later" ;;
  today) tff= ;;
  *) fail "STACK=tff or STACK=today, not STACK=$STACK" ;;
esac
[ "$tff$today" ] || fail "$systems; this is $machine${glibc:+ with glibc $glibc}
A container runs on others, too: docker build --platform=linux/amd64 -t fedpersonal ."
[ "$tff" ] || versions="3.11 to 3.13"
[ "$today" ] || versions="3.9 to 3.11"

# look STACK OLDEST NEWEST NAME...: runs each, because a name on the PATH may be a shim that fails.
look() {
  local stack=$1 oldest=$2 newest=$3 python
  shift 3
  if [ "${PYTHON-}" ]; then set -- "$PYTHON"; fi
  for python in "$@"; do
    "$python" -c '
import ensurepip, sys, venv
assert int(sys.argv[2]) <= sys.version_info[1] <= int(sys.argv[3]) and sys.version_info[0] == 3
print(sys.argv[1], sys.executable)' "$stack" "$oldest" "$newest" 2>/dev/null </dev/null && exit
  done
}
look_around() {
  if [ "$tff" ]; then look tff 9 11 python3.11 python3.10 python3.9 python3 python; fi
  if [ "$today" ]; then look today 11 13 python3.13 python3.12 python3.11 python3 python; fi
}
look_around

required="Python $versions with its venv module"
if [ "${PYTHON-}" ]; then fail "$required, not PYTHON=$PYTHON; name one with PYTHON=<path>"; fi
uv=$(command -v "${UV-uv}") || fail "$required: install one; PYTHON=<path> names one that is not on the PATH.
Or install uv (docs.astral.sh/uv): with uv on the PATH, make fetches Python $fetched."
if [ "${1-}" != fetch ]; then fail "$required; \`make install\` has uv fetch Python $fetched"; fi

echo "There is no Python $versions with its venv module here: uv fetches Python $fetched" >&2
# Use the system's certificates, by the settings of older and newer versions of uv. The Python is for
# environments only, not for the PATH.
export UV_NATIVE_TLS=true UV_SYSTEM_CERTS=true UV_PYTHON_INSTALL_BIN=false
"$uv" python install "$fetched" >&2 || fail "$required, and uv could not fetch Python $fetched"
# Environments of the checkout or of the shell do not count, only the fetched Python.
PYTHON=$(UV_PYTHON_PREFERENCE=only-managed "$uv" python find --system "$fetched") && look_around
fail "$required, and what uv has fetched is none: ${PYTHON:-it does not say where}"
