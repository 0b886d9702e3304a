"""A Ray cluster, or a Ray of this program's own, and the tasks that it runs."""

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

# Ray's switch, named after its first use, and read when Ray is imported: 0 makes it listen on the
# loopback device alone.
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
# The path of a socket has at most 107 bytes, of which Ray's session and our own names take 84.
_LONGEST_FOLDER = 23
_SECONDS_OF_A_LOOK = 10.0
# Of a task whose process or machine is lost; one that crashes its process each time must end.
_RETRIES = 10
# A smaller part of an argument goes with the call; a larger one travels once a machine.
_SMALL = 2**14

_functions: dict[str, Callable[..., Any]] = {}


def run_function(
    key: str, function: tuple[bytes, bool], environment: Mapping[str, str], *elements: Any
) -> Any:
    """Applies a function to a shard's value; it runs in a process of Ray's.

    Args:
        key: What tells the function from others: it is loaded once a process.
        function: The function, as arguments of `interpreter.load_function`.
        environment: The coordinator's environment variables that TensorFlow reads.
        *elements: The elements of the value if that is a struct, else itself. Ray puts them here
            from wherever they are.
    """
    if key not in _functions:
        os.environ.update(environment)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from fedpersonal.runtime.interpreter import load_function

        proto, compile = function
        _functions[key] = load_function(proto, compile=compile)
    return as_arrays(_functions[key](*elements))


def as_arrays(value: Any) -> Any:
    """Returns a tree of arrays and tensors as one of arrays."""
    if isinstance(value, list):
        return [as_arrays(part) for part in value]
    return value if isinstance(value, bytes) else np.asarray(value)


class RayContext(LocalContext):
    """Runs TFF computations here, and their shards on a cluster, of which a program has one.

    What becomes of a process or a machine that is lost is Ray's concern: it repeats their tasks
    elsewhere. Tasks are pure, and each has one result, whoever gives it.

    Attributes:
        address: Where the cluster's head is, as `host:port`.
        num_processors: How many tasks the cluster runs at once.
    """

    def __init__(self, address: str | None, *, compile: bool = True):
        """Connects this process to a cluster, or starts one on this machine.

        Args:
            address: Where the cluster is, as `host:port`, or `auto`; None to start a local one.
            compile: Whether XLA compiles what shards run, where that seems worth it.

        Raises:
            UserError: If there is no such cluster, or it cannot be used.
        """
        super().__init__(compile=compile)
        # By `id` of a function's building block: its key, and where it is.
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
            raise self._nobody_left()

    def close(self) -> None:
        """Leaves the cluster, and ends a Ray of this program's own."""
        import ray

        atexit.unregister(self.close)
        ray.shutdown()
        _remove(self._folder)

    @contextlib.contextmanager
    def _mapping(self) -> Iterator[MapShards]:
        """Gives what applies a function to each shard: tasks of the cluster."""
        # By its `id`, what was sent, which must stay alive for that, and where it is.
        sent: dict[int, tuple[Any, ray.ObjectRef]] = {}

        def map_shards(function: Callable[..., Any], shards: Shards) -> Iterable[Any]:
            assert isinstance(function, (Function, Graph))
            # One that calls no graph, such as a selection, is not worth the journey.
            if not shards or not function.graphs or not _is_closed(function.block):
                return map(function, shards)
            given = (*self._sent_function(function), self._environment)
            elements = [shard if isinstance(shard, list) else [shard] for shard in shards]
            return self._results(
                [
                    self._task.remote(*given, *(_send(element, sent) for element in of_shard))
                    for of_shard in elements
                ]
            )

        yield map_shards

    def _sent_function(self, function: Function | Graph) -> tuple[str, ray.ObjectRef]:
        """Returns a function's key and where it is; it is sent once."""
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
            UserError: If no machine is left, one lacks a file, or a task's process ends each time.
        """
        import ray

        waiting = tasks
        try:
            while waiting:
                ready, waiting = ray.wait(waiting, timeout=_SECONDS_OF_A_LOOK)
                # Without machines, Ray waits for some to come.
                if not ready and not ray.cluster_resources().get("CPU"):
                    raise self._nobody_left()
            return ray.get(tasks)
        except tf.errors.NotFoundError as error:  # It is a RayTaskError, too.
            missing = str(error).partition("[[{{")[0].strip().splitlines()[-1]
            raise UserError(
                "A Ray node lacks a file, such as a part of a frozen base model; it must be in the "
                f"same folder on every node: {missing}"
            ) from None
        except ray.exceptions.RayTaskError:  # Of the class that the task has raised, too.
            raise
        except ray.exceptions.RayError as error:
            raise UserError(f"The Ray cluster at {self.address} fails: {_line_of(error)}") from None

    def _nobody_left(self) -> UserError:
        return UserError(
            f"No node of the Ray cluster at {self.address} is left to compute on. Start nodes "
            "again; a run with a folder goes on from its last checkpoint."
        )


def _send(value: Any, sent: dict[int, tuple[Any, ray.ObjectRef]]) -> Any:
    """Returns a value as arrays, or where it is if it is large.

    What all shards have, such as a model, so travels once a machine.
    """
    import ray

    if id(value) not in sent:
        arrays = as_arrays(value)
        if _num_bytes(arrays) < _SMALL:
            return arrays
        sent[id(value)] = value, ray.put(arrays)
    return sent[id(value)][1]


def _connect(address: str | None) -> str | None:
    """Connects this process; SIGTERM keeps what it did before.

    Returns:
        The folder of a local Ray's session, with its sockets, in one that this user alone enters.

    Raises:
        UserError: If there is no such cluster, or it cannot be used.
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
        # Ray lets everybody write to the folder of its sessions.
        folder = make_folder()
        settings["_temp_dir"] = os.path.join(folder, "r")
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", **settings)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        _remove(folder)
        where = "on this machine" if address is None else f"at {address}"
        raise UserError(
            f"There is no Ray cluster {where} to use, or it has another token: {_line_of(error)}"
        ) from None
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, handler)
    return folder


def make_folder() -> str:
    """Makes a folder for this user alone whose path is short enough for Ray's sockets."""
    usual = tempfile.gettempdir()
    short = usual if len(os.fsencode(usual)) <= _LONGEST_FOLDER else "/tmp"
    return tempfile.mkdtemp(prefix="fp-ray-", dir=short)


def _remove(folder: str | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _line_of(error: BaseException) -> str:
    """Returns what an error says in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:300]


def _num_bytes(value: Any) -> int:
    """Returns the size of a tree of arrays; texts count by their pointers."""
    if isinstance(value, list):
        return sum(map(_num_bytes, value))
    return np.asarray(value).nbytes


def _is_closed(block: tff.ComputationBuildingBlock) -> bool:
    """Tells whether a function refers to nothing outside itself, and says so if it does."""
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
