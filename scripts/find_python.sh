#!/usr/bin/env bash
# Prints a stack of packages, tff or today, and the first Python here that it can be installed with,
# or says what is wanted. Where PYTHON or STACK is set, nothing else is taken.
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
versions="3.9 to 3.13"
case ${STACK-} in
  "") ;;
  tff) today= systems="for STACK=tff Linux on x86-64 with glibc 2.31 or later" ;;
  today) tff= ;;
  *) fail "STACK=tff or STACK=today, not STACK=$STACK" ;;
esac
[ "$tff$today" ] || fail "$systems; this is $machine${glibc:+ with glibc $glibc}"
[ "$tff" ] || versions="3.11 to 3.13"
[ "$today" ] || versions="3.9 to 3.11"

# look STACK OLDEST NEWEST NAME...: a name on the PATH may be a shim that fails, so each is run and asked.
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
if [ "$tff" ]; then look tff 9 11 python3.11 python3.10 python3.9 python3 python; fi
if [ "$today" ]; then look today 11 13 python3.13 python3.12 python3.11 python3 python; fi
fail "Python $versions with its venv module${PYTHON:+, not PYTHON=$PYTHON}; name one with PYTHON=<path>"
