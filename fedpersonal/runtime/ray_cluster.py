"""The nodes of a Ray cluster: one actor on each, and what becomes of those that are lost."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fedpersonal.errors import UserError
from fedpersonal.runtime.ray_connection import Connection, line_of

if TYPE_CHECKING:
    import ray

_log = logging.getLogger(__name__)

_SECONDS_OF_A_LOOK = 1.0
_SECONDS_WITHOUT_HEAD = 10.0
# An actor claims next to nothing, so that a node that stays can take over from one that is lost.
_CLAIM = 0.001


@dataclasses.dataclass(eq=False)
class _Actor:
    """The actor of a node.

    Attributes:
        handle: Ray's handle of a `ray_node.Node`.
        node: The node's address.
        processors: How many members it runs at once.
        heard: When it last gave a result, or got its first call since.
    """

    handle: ray.actor.ActorHandle
    node: str
    processors: int
    heard: float = 0.0


class Cluster:
    """Runs functions of members of CLIENTS on the nodes of a Ray cluster.

    A node that dies is Ray's concern: it starts the node's actor again, elsewhere if need be, and
    repeats the calls that had no result. A node that gives no result for too long is given up, and
    its calls go to the others. Calls are pure, and each has one result, whoever gives it.
    """

    def __init__(self, address: str | None, *, node_seconds: float):
        """Connects to a cluster, or starts one on this machine, and starts the nodes' actors.

        Args:
            address: Where the cluster is, as `host:port`, or `auto`; None to start a local one.
            node_seconds: Seconds without any result after which a node counts as lost.

        Raises:
            UserError: If there is no such cluster, or it cannot be used.
        """
        self._seconds = node_seconds
        self._connection = Connection(address)
        self._silent_since: float | None = None
        self._actors = [_start_actor(node) for node in _nodes()]
        self._is_checked = False
        self._why = "none has a processor"
        if not self._actors:
            raise self._nobody_left()

    @property
    def num_processors(self) -> int:
        """How many members the cluster runs at once."""
        return sum(actor.processors for actor in self._actors)

    def put(self, value: Any) -> ray.ObjectRef:
        """Puts a value where each node fetches it once."""
        import ray

        return ray.put(value)

    def run(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Runs `ray_node.Node.run` with each call's arguments; returns the results in order.

        Raises:
            UserError: If no node is left.
        """
        import ray

        self._check()
        results: list[Any] = [None] * len(calls)
        begun: dict[ray.ObjectRef, tuple[int, _Actor]] = {}
        to_begin: list[int] = list(range(len(calls)))
        while begun or to_begin:
            for number, actor in zip(to_begin, self._in_turn(len(to_begin))):
                begun[actor.handle.run.remote(*calls[number])] = number, actor
            to_begin = []
            ready, _ = ray.wait(list(begun), timeout=_SECONDS_OF_A_LOOK)
            for reference in ready:
                number, actor = begun.pop(reference)
                try:
                    results[number] = ray.get(reference)
                    actor.heard = time.monotonic()
                except ray.exceptions.RayActorError as error:
                    self._give_up(actor, line_of(error))
                    to_begin.append(number)
                except ray.exceptions.ObjectLostError:  # With the node that had the result.
                    to_begin.append(number)
            if not ready:
                to_begin += self._look(begun)
        return results

    def close(self) -> None:
        """Ends the actors, and the cluster where it was started here."""
        self._connection.close()

    def _in_turn(self, count: int) -> Iterable[_Actor]:
        """Returns as many actors: each as often as it has processors, spread evenly."""
        slots = [(k / a.processors, a) for a in self._actors for k in range(a.processors)]
        slots.sort(key=lambda slot: slot[0])
        now = time.monotonic()
        for number in range(count):
            actor = slots[number % len(slots)][1]
            actor.heard = now
            yield actor

    def _look(self, begun: dict[ray.ObjectRef, tuple[int, _Actor]]) -> list[int]:
        """Looks after the nodes that are silent; returns the calls of those that are lost."""
        if not self._has_head():
            return []
        if not _nodes():
            self._why = "all have ended"
            raise self._nobody_left()
        now = time.monotonic()
        lost = {a for _, a in begun.values() if now - a.heard > self._seconds}
        for actor in lost:
            self._give_up(actor, f"it gave no result for {self._seconds:g} s")
        repeated = [r for r, (_, actor) in begun.items() if actor in lost]
        return sorted(begun.pop(reference)[0] for reference in repeated)

    def _has_head(self) -> bool:
        """Tells whether the head answers; Ray would wait for it, and then end the program."""
        host, _, port = self._connection.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_SECONDS_OF_A_LOOK).close()
        except OSError:
            now = time.monotonic()
            self._silent_since = self._silent_since or now
            if now - self._silent_since > _SECONDS_WITHOUT_HEAD:
                self._why = "its head does not answer"
                raise self._nobody_left() from None
            return False
        self._silent_since = None
        return True

    def _give_up(self, actor: _Actor, why: str) -> None:
        import ray

        if actor not in self._actors:
            return
        self._actors.remove(actor)
        ray.kill(actor.handle)
        self._why = f"the last one, {actor.node}, was given up: {why}"
        if not self._actors:
            raise self._nobody_left()
        _log.warning("The Ray node %s is given up: %s.", actor.node, why)

    def _nobody_left(self) -> UserError:
        return UserError(
            f"No node of the Ray cluster at {self._connection.address} is left to compute on; "
            f"{self._why}. Start nodes again; a run with a folder goes on from its last checkpoint."
        )

    def _check(self) -> None:
        """Raises a `UserError` unless all nodes have started and are as this process is."""
        import ray

        from fedpersonal.runtime.ray_node import about

        if self._is_checked:
            return
        own = about()
        for actor in self._actors:
            try:
                theirs = ray.get(actor.handle.about.remote(), timeout=self._seconds)
            except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
                raise UserError(
                    f"The Ray node {actor.node} does not start: {line_of(error)} Was it started "
                    "with RAY_AUTH_MODE=token, the same token, and fedpersonal installed?"
                ) from None
            for name in own:
                if own[name] == theirs[name]:
                    continue
                if name != "processor":
                    raise UserError(
                        f"The Ray node {actor.node} has {name} {theirs[name]}, and this machine "
                        f"{own[name]}; install the same on both."
                    )
                _log.warning(
                    "The Ray node %s has the processor %s, and this machine %s: results may "
                    "differ in their last digits.",
                    actor.node,
                    theirs[name],
                    own[name],
                )
        self._is_checked = True


def _nodes() -> list[dict[str, Any]]:
    """Returns Ray's description of the nodes that live and have processors."""
    import ray

    return [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) >= 1]


def _start_actor(node: dict[str, Any]) -> _Actor:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from fedpersonal.runtime.ray_node import Node

    processors = int(node["Resources"]["CPU"])
    handle = (
        ray.remote(Node)
        .options(
            num_cpus=_CLAIM,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=processors,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=True),
        )
        .remote({k: v for k, v in os.environ.items() if k.startswith(("TF_", "XLA_"))})
    )
    return _Actor(handle, node["NodeManagerAddress"], processors)
