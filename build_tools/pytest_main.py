"""Runs pytest on the files in the arguments, as Bazel requires."""

import os
import sys


def main() -> int:
    """Translates Bazel's environment variables into pytest's options."""
    scratch = os.environ["TEST_TMPDIR"]
    # Libraries keep caches in the home folder, which may be read-only here.
    os.environ["HOME"] = scratch

    import pytest

    options = ["--config-file=pyproject.toml", "-p", "no:cacheprovider"]
    options.append(f"--basetemp={os.path.join(scratch, 'pytest')}")
    if "XML_OUTPUT_FILE" in os.environ:
        options.append(f"--junitxml={os.environ['XML_OUTPUT_FILE']}")
    if "TESTBRIDGE_TEST_ONLY" in os.environ:
        options.append(f"-k={os.environ['TESTBRIDGE_TEST_ONLY']}")
    return pytest.main(options + sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
