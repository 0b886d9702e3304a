"""Runs pytest on the files named by the arguments, the way Bazel wants a test to run."""

import os
import sys


def main() -> int:
    """Translates what Bazel says by environment variables into pytest's options."""
    scratch = os.environ["TEST_TMPDIR"]
    # Libraries that keep caches in the home folder must not: it may be read-only here.
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
