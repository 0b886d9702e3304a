"""Starts Ray nodes on this machine and trains on them, as on separate machines.

python -m examples.ray_nodes

Both runs, on two nodes and in one process, give the same results. Needs Ray: `make cluster`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping

import psutil

_RUN = (
    "experiments.movielens",
    "--flagfile=experiments/presets/movielens_quick.flags",
    "--total_rounds=30",
    "--shards=4",
)


@dataclasses.dataclass(frozen=True)
class Nodes:
    """Ray nodes on this machine.

    Attributes:
        folder: The folder that they write to.
        address: The address of the first node, for `--ray_address`.
        environment: The environment variables of the nodes and of programs that use them.
        processes: The process of each node; its other processes are descendants.
    """

    folder: str
    address: str
    environment: Mapping[str, str]
    processes: list[subprocess.Popen] = dataclasses.field(default_factory=list)

    def start(self, processors: int) -> None:
        """Starts one more node with this number of processors."""
        port, shown = self.address.partition(":")[2], []
        where = [f"--address={self.address}"]
        if not self.processes:
            client_port = f"--ray-client-server-port={_free_port()}"
            where = ["--head", f"--port={port}", f"--temp-dir={self.folder}/r", client_port]
        command = ["--block", f"--num-cpus={processors}", "--object-store-memory=200000000"]
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *where, *command],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        assert process.stdout
        for line in process.stdout:
            shown.append(line)
            if "will now block forever" in line:
                return
        raise RuntimeError("A Ray node has not started:\n" + "".join(shown))

    def kill(self, number: int) -> None:
        """Kills all processes of a node at once, as if its machine had lost power."""
        family = self.family(number)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=10)

    def family(self, number: int) -> list[psutil.Process]:
        """Returns the processes of a node."""
        try:
            first = psutil.Process(self.processes[number].pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


@contextlib.contextmanager
def ray_nodes(*processors: int, **environment: str) -> Iterator[Nodes]:
    """Starts a node for each number of processors, and ends them all.

    They listen to the network, as on separate machines, and require a token.

    Args:
        *processors: Number of processors that each node declares.
        **environment: Environment variables of the nodes and of programs that use them.
    """
    # All users can write to Ray's folder, so it is within a folder that only this user can enter.
    with tempfile.TemporaryDirectory(prefix="ray_") as folder:
        settings = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)]),
            **environment,
        }
        nodes = Nodes(folder, f"127.0.0.1:{_free_port()}", settings)
        try:
            for count in processors:
                nodes.start(count)
            yield nodes
        finally:
            for number in reversed(range(len(nodes.processes))):
                nodes.kill(number)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def main() -> None:
    """Runs the same command on two nodes and in this process, and compares the results."""
    runs = {}
    with tempfile.TemporaryDirectory() as folder, ray_nodes(2, 2) as nodes:
        for runtime in (["ray", f"--ray_address={nodes.address}"], ["local"]):
            name, *address = runtime
            print(f"\n{name}:", flush=True)
            output = pathlib.Path(folder) / name
            subprocess.run(
                [sys.executable, "-m", *_RUN, f"--runtime={name}", *address]
                + [f"--output_dir={output}"],
                env=nodes.environment,
                check=True,
            )
            runs[name] = (output / "per_client.csv").read_bytes()
    same = "the same" if runs["ray"] == runs["local"] else "NOT the same"
    print(f"\nPer-client results of both runs: {same}.")
    sys.exit(same != "the same")


if __name__ == "__main__":
    main()
