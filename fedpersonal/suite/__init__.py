"""The suite above the library: tasks, their models and readers, papers, sweeps, commands."""

import pathlib

# The checkout, or the folder of installed packages.
ROOT = pathlib.Path(__file__).resolve().parents[2]
_INSTALLED = pathlib.Path(__file__).parent / "presets"
# Files of flags. A wheel has them in the package, a checkout next to the binaries.
PRESETS = _INSTALLED if _INSTALLED.is_dir() else ROOT / "experiments" / "presets"
