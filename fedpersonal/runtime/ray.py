"""A Ray cluster, or a local Ray of this program, and the tasks that it runs."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import secrets
import shutil
import signal
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from absl import logging

from fedpersonal import tff
from fedpersonal.errors import UserError
from fedpersonal.runtime.context import LocalContext
from fedpersonal.runtime.graphs import Graph
from fedpersonal.runtime.interpreter import Function, MapShards, blocks_in
from fedpersonal.runtime.processors import count_processors
from fedpersonal.runtime.values import Shards

if TYPE_CHECKING:
    import ray

# An environment variable that Ray reads when it is imported: 0 makes it listen on the loopback
# device only.
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
# The path of a socket has at most 107 bytes, of which the names of Ray and of this module take 84.
_MAX_FOLDER_LENGTH = 23
_WAIT_SECONDS = 10.0
# Retries after the loss of a process or machine; finite, because a task may crash each process.
_RETRIES = 10
# A smaller part of an argument is sent with the call; a larger one once to each machine.
_SMALL = 2**14

_functions: dict[str, Callable[..., Any]] = {}


def run_function(
    key: str, function: tuple[bytes, bool], environment: Mapping[str, str], *elements: Any
) -> Any:
    """Applies a function to a shard's value; runs in a process of Ray.

    Args:
        key: The key of the function, which each process loads once.
        function: The function, as arguments of `interpreter.load_function`.
        environment: The coordinator's environment variables that TensorFlow reads.
        *elements: The elements of the value if it is a struct, else the value. Ray resolves
            references to them.
    """
    if key not in _functions:
        os.environ.update(environment)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from fedpersonal.runtime.interpreter import load_function

        proto, compile = function
        _functions[key] = load_function(proto, compile=compile)
    return as_arrays(_functions[key](*elements))


def as_arrays(value: Any) -> Any:
    """Converts a tree of arrays and tensors to a tree of arrays."""
    if isinstance(value, list):
        return [as_arrays(part) for part in value]
    return value if isinstance(value, bytes) else np.asarray(value)


class RayContext(LocalContext):
    """Runs TFF computations in this process, and their shards on the program's one cluster.

    If a process or a machine is lost, Ray repeats its tasks elsewhere. Tasks are pure, so the
    result does not depend on where they run.

    Attributes:
        address: The address of the cluster's head, as `host:port`.
        num_processors: The number of tasks that the cluster runs in parallel.
    """

    def __init__(self, address: str | None, *, compile: bool = True):
        """Connects this process to a cluster, or starts one on this machine.

        Args:
            address: The cluster's address, as `host:port`, or `auto`; None to start a local one.
            compile: Whether XLA compiles the shards' graphs, if that seems worth it.

        Raises:
            UserError: If the cluster does not exist or cannot be used.
        """
        super().__init__(compile=compile)
        # `id` of a function's building block to its key and its reference.
        self._functions: dict[int, tuple[str, ray.ObjectRef]] = {}
        self._folder = _connect(address)
        atexit.register(self.close)
        import ray

        self.address: str = ray.get_runtime_context().gcs_address
        self.num_processors = int(ray.cluster_resources().get("CPU", 0))
        self._task = ray.remote(run_function).options(
            num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD"
        )
        self._environment = {k: v for k, v in os.environ.items() if k.startswith(("TF_", "XLA_"))}
        if not self.num_processors:
            self.close()
            raise self._no_node_error()

    def close(self) -> None:
        """Leaves the cluster; ends a local Ray of this program."""
        import ray

        atexit.unregister(self.close)
        ray.shutdown()
        _remove(self._folder)

    @contextlib.contextmanager
    def _mapping(self) -> Iterator[MapShards]:
        """Yields a function that applies a function to each shard in tasks of the cluster."""
        # `id` of a sent value to the value, which must stay alive, and its reference.
        sent: dict[int, tuple[Any, ray.ObjectRef]] = {}

        def map_shards(function: Callable[..., Any], shards: Shards) -> Iterable[Any]:
            assert isinstance(function, (Function, Graph))
            # A function without graphs, such as a selection, is not worth sending.
            if not shards or not function.graphs or not _is_closed(function.block):
                return map(function, shards)
            arguments = (*self._send_function(function), self._environment)
            elements = [shard if isinstance(shard, list) else [shard] for shard in shards]
            return self._results(
                [
                    self._task.remote(*arguments, *(_send(element, sent) for element in of_shard))
                    for of_shard in elements
                ]
            )

        yield map_shards

    def _send_function(self, function: Function | Graph) -> tuple[str, ray.ObjectRef]:
        """Sends a function, if new; returns its key and its reference."""
        import ray

        block = function.block
        if id(block) not in self._functions:
            proto = tff.to_proto(block).SerializeToString(deterministic=True)
            key = hashlib.sha256(proto).hexdigest() + str(self._compile)
            self._functions[id(block)] = key, ray.put((proto, self._compile))
            weakref.finalize(block, self._functions.pop, id(block), None).atexit = False
        return self._functions[id(block)]

    def _results(self, tasks: list[ray.ObjectRef]) -> list[Any]:
        """Returns the results of tasks in order.

        Raises:
            UserError: If no machine is left, one lacks a file, or a task's process always ends.
        """
        import ray

        waiting = tasks
        try:
            while waiting:
                ready, waiting = ray.wait(waiting, timeout=_WAIT_SECONDS)
                # Without machines, Ray waits for new ones.
                if not ready and not ray.cluster_resources().get("CPU"):
                    raise self._no_node_error()
            return ray.get(tasks)
        except tf.errors.NotFoundError as error:  # The error is a RayTaskError, too.
            missing = str(error).partition("[[{{")[0].strip().splitlines()[-1]
            raise UserError(
                "A Ray node lacks a file, such as a part of a frozen base model; it must be in the "
                f"same folder on every node: {missing}"
            ) from None
        except ray.exceptions.RayTaskError:  # Also an instance of the class that the task raised.
            raise
        except ray.exceptions.RayError as error:
            raise UserError(
                f"The Ray cluster at {self.address} fails: {_first_line(error)}"
            ) from None

    def _no_node_error(self) -> UserError:
        return UserError(
            f"No node of the Ray cluster at {self.address} is left to compute on. Start nodes "
            "again; a run with a folder resumes from its last checkpoint."
        )


def _send(value: Any, sent: dict[int, tuple[Any, ray.ObjectRef]]) -> Any:
    """Returns a small value as arrays, a large value as a reference.

    So a value of all shards, such as a model, is sent once to each machine.
    """
    import ray

    if id(value) not in sent:
        arrays = as_arrays(value)
        if _num_bytes(arrays) < _SMALL:
            return arrays
        sent[id(value)] = value, ray.put(arrays)
    return sent[id(value)][1]


def _connect(address: str | None) -> str | None:
    """Connects this process, and keeps its handler of SIGTERM.

    Returns:
        The folder of a local Ray's session and sockets, which only this user can enter; else None.

    Raises:
        UserError: If the cluster does not exist or cannot be used.
    """
    if address is not None and address.startswith("ray://"):
        raise UserError(
            f"ray_address is {address!r}; it must be host:port of a node: the program runs on a "
            "machine of the cluster."
        )
    mode = os.environ.setdefault("RAY_AUTH_MODE", "token")
    if mode != "token":
        raise UserError(f"RAY_AUTH_MODE is {mode!r}; it must be token, or not set.")
    settings: dict[str, Any] = {"address": address}
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address is None:
        os.environ[_LOOPBACK] = "0"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # Ray reads it once.
        settings = {"address": "local", "num_cpus": count_processors(), "include_dashboard": False}
    import ray

    if ray.is_initialized():
        raise UserError("This program uses Ray already: call ray.shutdown() before use_runtime.")
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    folder = None
    if address is None:
        # Ray's default folder of sessions is writable for everyone.
        folder = make_folder()
        settings["_temp_dir"] = os.path.join(folder, "r")
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", **settings)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        _remove(folder)
        where = "on this machine" if address is None else f"at {address}"
        raise UserError(
            f"There is no Ray cluster {where} to use, or it has another token: {_first_line(error)}"
        ) from None
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, handler)
    return folder


def make_folder() -> str:
    """Makes a folder for this user only, with a path short enough for Ray's sockets."""
    default = tempfile.gettempdir()
    short = default if len(os.fsencode(default)) <= _MAX_FOLDER_LENGTH else "/tmp"
    return tempfile.mkdtemp(prefix="fp-ray-", dir=short)


def _remove(folder: str | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _first_line(error: BaseException) -> str:
    """Returns the first line of an error's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:300]


def _num_bytes(value: Any) -> int:
    """Returns the size of a tree of arrays; texts count as pointers."""
    if isinstance(value, list):
        return sum(map(_num_bytes, value))
    return np.asarray(value).nbytes


def _is_closed(block: tff.ComputationBuildingBlock) -> bool:
    """Returns whether a function refers only to its arguments; logs a warning if not."""
    used, bound = set(), set()
    for part in blocks_in(block):
        if isinstance(part, tff.Reference):
            used.add(part.name)
        elif isinstance(part, tff.Lambda):
            bound.add(part.parameter_name)
        elif isinstance(part, tff.Block):
            bound.update(name for name, _ in part.locals)
    if used <= bound:  # Names are unique in TFF's call-dominant form.
        return True
    logging.log_first_n(
        logging.WARNING,
        "A function of clients' values runs in this process, not on Ray's nodes: it uses values "
        "that are not its arguments. Hand them over by tff.federated_broadcast.",
        1,
    )
    return False
