"""A Python toolchain for Bazel from an existing virtual environment."""

_BUILD = """\
load("@rules_python//python:defs.bzl", "py_runtime", "py_runtime_pair")

py_runtime(
    name = "runtime",
    interpreter_path = "{python}",
    python_version = "PY3",
    stub_shebang = "#!{python}",
)

py_runtime_pair(
    name = "runtime_pair",
    py3_runtime = ":runtime",
)

toolchain(
    name = "toolchain",
    toolchain = ":runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

# An active environment may belong to another project, so check that it has the packages.
_PROBE = """\
import importlib.util, sys
sys.exit(not any(map(importlib.util.find_spec, ("tensorflow_federated", "federated_language"))))"""

def _python_environment_impl(repository_ctx):
    workspace = repository_ctx.path(Label("//:WORKSPACE")).dirname
    folders = [repository_ctx.os.environ.get("VIRTUAL_ENV"), str(workspace) + "/.venv"]
    for folder in folders:
        python = str(folder) + "/bin/python"
        if (folder and repository_ctx.path(python).exists and
            repository_ctx.execute([python, "-c", _PROBE]).return_code == 0):
            repository_ctx.file("BUILD", _BUILD.format(python = python))
            return
    fail("No virtual environment with the packages of fedpersonal: run `make install` first.")

python_environment = repository_rule(
    doc = "Registers the interpreter of $VIRTUAL_ENV or of .venv as a Python toolchain.",
    implementation = _python_environment_impl,
    environ = ["VIRTUAL_ENV"],
    # Every Bazel server checks it again, because the environment is outside of Bazel's control.
    local = True,
)
