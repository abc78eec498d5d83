"""One NIXL agent: the only file that calls the NIXL library (1.5).

What NIXL does over UCX, as measured, and what follows from it here:
- Its progress thread burns one core even when idle: it is off, and `is_done` and `notifications` make the progress.
- `release_xfer_handle` and `remove_remote_agent` both succeed while a write is in flight, yet over TCP the bytes keep
  leaving the source buffer afterwards. So an unfinished write is never released: it is polled until it ends, or the
  agent is destroyed, which takes 60-90 ms and frees every source for certain.
- A killed peer is noticed at once; a stopped or unreachable one never ends the write.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import uuid
from collections.abc import Mapping
from typing import Any

from pdkv_connector.errors import TransportError
from pdkv_connector.transport.base import Memory

_QUIET = "FATAL"
"""NIXL logs each failed write to stderr; the same failures are reported here as events."""


class NixlAgent:
    """An agent of a unique name with one backend. Raises TransportError when the library or the backend is missing."""

    def __init__(self, backend: str, params: Mapping[str, str]) -> None:
        api = _load_library()
        self._backend = backend
        self._registrations: list[Any] = []
        try:
            config = api.nixl_agent_config(enable_prog_thread=False, backends=[])
            self._agent: Any = api.nixl_agent(f"pdkv-{uuid.uuid4().hex}", config)
            self._agent.create_backend(backend, dict(params))
        except Exception as error:
            raise TransportError(
                f"NIXL backend {backend!r} with params {dict(params)} did not start: {_describe(error)}; "
                "check the transport's backend and params"
            ) from error

    def register(self, memory: Memory) -> None:
        """Register `memory` with the backend. Raises TransportError."""
        try:
            descriptors = self._agent.get_reg_descs(
                [(memory.address, memory.num_bytes, memory.device_id, "")], memory.kind
            )
            self._agent.register_memory(descriptors, backends=[self._backend])
        except Exception as error:
            raise TransportError(f"NIXL {self._backend} cannot register {memory}: {_describe(error)}") from error
        self._registrations.append(descriptors)

    def metadata(self) -> bytes:
        """Connection data and remote keys of everything registered so far."""
        return bytes(self._agent.get_agent_metadata())

    def add_remote(self, metadata: bytes) -> str:
        """Load a remote agent and return its name. Raises TransportError."""
        try:
            name = self._agent.add_remote_agent(metadata)
        except Exception as error:
            raise TransportError(f"NIXL cannot load {len(metadata)} bytes of metadata: {_describe(error)}") from error
        return name.decode() if isinstance(name, bytes) else str(name)

    def remove_remote(self, name: str) -> None:
        """Forget a remote agent; only when no write to it is unfinished. Unknown names are ignored."""
        with contextlib.suppress(Exception):
            self._agent.remove_remote_agent(name)

    def start(self, remote: str, source: Memory, target: Memory, notification: bytes) -> object:
        """Post one write; returns its handle. Raises TransportError when it could not be posted."""
        try:
            handle = self._agent.initialize_xfer(
                "WRITE", self._span(source), self._span(target), remote, notification, backends=[self._backend]
            )
            if self._agent.transfer(handle) == "ERR":
                raise TransportError("the backend refused the write")
        except Exception as error:
            raise TransportError(_describe(error)) from error
        return handle

    def is_done(self, handle: Any) -> bool:
        """True once the write has ended well, False while it runs. Raises TransportError when it has failed."""
        try:
            state = self._agent.check_xfer_state(handle)
        except Exception as error:
            raise TransportError(_describe(error)) from error
        if state == "ERR":
            raise TransportError("the backend reports an error")
        return bool(state == "DONE")

    def release(self, handle: Any) -> None:
        """Free the handle of a write that has ended, or of any write right before `destroy`."""
        with contextlib.suppress(Exception):  # NIXL keeps a handle it cannot free, and frees it with the agent
            handle.release()

    def notifications(self) -> list[bytes]:
        """Notifications of writes that have landed here, in order per sender. Raises TransportError."""
        try:
            arrived: dict[str, list[bytes]] = self._agent.get_new_notifs(backends=[self._backend])
        except Exception as error:
            raise TransportError(f"NIXL {self._backend} cannot read notifications: {_describe(error)}") from error
        return [payload for payloads in arrived.values() for payload in payloads]

    def destroy(self) -> None:
        """End the agent and every unfinished write; afterwards no source is read any more. Safe to call twice."""
        if self._agent is None:
            return
        for descriptors in self._registrations:
            with contextlib.suppress(Exception):
                self._agent.deregister_memory(descriptors, backends=[self._backend])
        self._registrations.clear()
        self._agent = None  # the binding's destructor does the work: no other reference may exist

    def _span(self, memory: Memory) -> Any:
        return self._agent.get_xfer_descs([(memory.address, memory.num_bytes, memory.device_id)], memory.kind)


def _load_library() -> Any:
    """Import NIXL quietly. Raises TransportError naming the package when it is missing."""
    previous = os.environ.get("NIXL_LOG_LEVEL")
    os.environ.setdefault("NIXL_LOG_LEVEL", _QUIET)
    try:
        return importlib.import_module("nixl._api")
    except ImportError as error:
        raise TransportError(
            f"transport 'nixl' needs the package nixl ({error}): run pip install 'pdkv-connector[nixl]'"
        ) from error
    finally:
        if previous is None:
            os.environ.pop("NIXL_LOG_LEVEL", None)


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, TransportError) else f"{type(error).__name__}: {error}"
