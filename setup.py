"""Packaging of fedpersonal; requirements/lock.txt pins what it is tested with."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
# Where TensorFlow Federated's last release can be installed, and where its language stands alone.
TFF = 'python_version < "3.12" and sys_platform == "linux" and platform_machine == "x86_64"'
TODAY = 'python_version >= "3.12" or sys_platform != "linux" or platform_machine != "x86_64"'


def version() -> str:
    """Reads the version off the source, without importing dependencies."""
    text = (HERE / "fedpersonal" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE).group(1)


def listed(name: str) -> list[str]:
    """Returns what a file of requirements/ lists."""
    lines = (HERE / "requirements" / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and line[0] != "#"]


def long_description() -> str:
    """Returns the README, where there is one."""
    readme = HERE / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


setup(
    name="fedpersonal",
    version=version(),
    description="Partially local federated learning on TensorFlow Federated",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.9",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    packages=[*find_packages(include=["fedpersonal*"]), "fedpersonal.suite.presets"],
    package_dir={"fedpersonal.suite.presets": "experiments/presets"},
    package_data={
        "fedpersonal": ["py.typed"],
        "fedpersonal.methods": ["*.pyi"],
        "fedpersonal.report": ["page/*"],
        "fedpersonal.suite.leaderboard": ["*.json"],
        "fedpersonal.suite.papers": ["*.csv"],
        "fedpersonal.suite.presets": ["*.flags"],
    },
    entry_points={"console_scripts": ["fedpersonal = fedpersonal.suite.commands.command:main"]},
    python_requires=">=3.9",
    install_requires=[
        "absl-py>=1.0",
        "dp-accounting>=0.4.3",
        f"federated-language>=0.5.4; {TODAY}",
        "jinja2>=3.1",
        "matplotlib>=3.7",
        f"numpy~=1.25.2; {TFF}",
        f"numpy>=2; {TODAY}",
        "pandas>=2.0",
        "psutil>=5.9",
        "regex>=2023.12.25",
        "scikit-learn>=1.6",
        "scipy>=1.9",
        "syntok>=1.4.4",
        "tabulate>=0.9",
        "tensorboard>=2.14.1",
        f"tensorflow>=2.14.1,<2.15; {TFF}",
        f"tensorflow>=2.21; {TODAY}",
        f"tensorflow-federated==0.87.0; {TFF}",
        f"tf-keras>=2.21; {TODAY}",
        "threadpoolctl>=3",
        "tqdm>=4.64",
    ],
    extras_require={
        # Experiments on several machines, from Python 3.10 on.
        "cluster": listed("cluster.in"),
        # Data sets of a program's own.
        "datasets": [
            f"tensorflow-datasets==4.9.3; {TFF}",
            f"tensorflow-datasets>=4.9.10; {TODAY}",
        ],
        # The site of docs/.
        "docs": listed("docs.in"),
        # FedPerC's base model; later ones drop TensorFlow.
        "language": [
            f"transformers==4.41.2; {TFF}",
            f"transformers>=4.57,<5; {TODAY}",
        ],
    },
)
