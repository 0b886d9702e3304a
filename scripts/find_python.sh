#!/usr/bin/env bash
# Prints the first Python that TensorFlow Federated can be installed with, or says what is wanted.
set -u

fail() {
  echo "fedpersonal needs $1" >&2
  exit 2
}

[ "$(uname -s) $(uname -m)" = "Linux x86_64" ] ||
  fail "Linux on x86-64 with glibc 2.31 or later; this is $(uname -s) on $(uname -m)"
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | awk '{print $2}')
[ "$(printf '%s\n' 2.31 "${glibc:-0}" | sort -V | head -n 1)" = 2.31 ] ||
  fail "Linux on x86-64 with glibc 2.31 or later; the C library here is ${glibc:-another one}"

# A name on the PATH may be a shim that fails: each is run and asked.
for python in ${PYTHON:+"$PYTHON"} python3.11 python3.10 python3.9 python3 python; do
  "$python" -c '
import ensurepip, sys, venv
assert (3, 9) <= sys.version_info[:2] <= (3, 11)
print(sys.executable)' 2>/dev/null </dev/null && exit
done
fail "Python 3.9, 3.10 or 3.11 with its venv module; name one with PYTHON=<path>"
