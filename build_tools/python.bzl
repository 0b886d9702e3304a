"""The repository's Python binaries and tests."""

load("@rules_python//python:defs.bzl", "py_binary", "py_library", "py_test")

def python_binaries(deps, exclude = []):
    """Makes a binary of every module of the folder that has a main: `foo.py` is `:foo`.

    Args:
      deps: The dependencies of the binaries.
      exclude: Modules without a main.
    """
    for source in native.glob(["*.py"], exclude = ["__init__.py"] + exclude):
        py_binary(
            name = source[:-len(".py")],
            srcs = [source],
            legacy_create_init = 0,
            visibility = ["//visibility:public"],
            deps = deps,
        )

def pytest_tests(deps, data = [], long = []):
    """Makes a test of every `*_test.py` of the folder and of its subfolders without a BUILD file.

    The first test of each folder that is not long has the tag `one_a_folder`. The other modules are
    helpers.

    Args:
      deps: The dependencies of the tests.
      data: Files that the tests read.
      long: Tests that take minutes.
    """
    py_library(
        name = "helpers",
        testonly = True,
        srcs = native.glob(["**/*.py"], exclude = ["conftest.py", "**/*_test.py"]),
        deps = deps,
    )
    folders = {}
    for source in sorted(native.glob(["**/*_test.py"])):
        folder = source.rpartition("/")[0]
        tags = [] if folder in folders or source in long else ["one_a_folder"]
        if tags:
            folders[folder] = True
        py_test(
            name = source[:-len(".py")],
            tags = tags,
            # Importing TensorFlow Federated alone takes up to 14 seconds.
            timeout = "long",
            srcs = [
                source,
                "//build_tools:pytest_main.py",
            ],
            args = ["$(rootpath %s)" % source],
            data = data + ["//:pyproject.toml"],
            legacy_create_init = 0,
            main = "//build_tools:pytest_main.py",
            deps = [
                ":helpers",
                "//tests:conftest",
            ],
        )
