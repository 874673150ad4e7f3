# SPDX-License-Identifier: Apache-2.0
"""One resource, served to the kubelet on a socket of its own.

Allocate says nothing: it is not told whose container it is, so that it cannot know which card that
one was given. The runtime knows, and gives the container everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from vgpu.kubelet import deviceplugin_v1beta1_pb2 as api

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

OPTIONS = api.DevicePluginOptions()
"""Neither GetPreferredAllocation nor PreStartContainer: slots are alike, and starts are ours."""


class PluginServer:
    """Serves a resource from `start` to `stop`. Lives on the event loop."""

    def __init__(self, resource_name: str, socket: Path) -> None:
        """`socket`: a path that was never used before, so that no other server removes it."""
        self.resource_name = resource_name
        self.socket = socket
        self._server = grpc.aio.server()
        self._message = b""
        self._changed = asyncio.Event()
        self._streams = 0

    @property
    def heard(self) -> bool:
        """Whether a kubelet holds a stream of the slots open."""
        return self._streams > 0

    def offer(self, message: bytes) -> None:
        """List these slots from now on; `message` is a v1beta1.ListAndWatchResponse."""
        if message != self._message:
            self._message = message
            self._changed.set()
            self._changed = asyncio.Event()

    async def start(self) -> None:
        """Begin to serve. Raises OSError."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
                self._get_options,
                request_deserializer=api.Empty.FromString,
                response_serializer=api.DevicePluginOptions.SerializeToString,
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._list_and_watch,
                request_deserializer=api.Empty.FromString,
                response_serializer=None,  # the slots are encoded already
            ),
            "Allocate": grpc.unary_unary_rpc_method_handler(
                self._allocate,
                request_deserializer=api.AllocateRequest.FromString,
                response_serializer=api.AllocateResponse.SerializeToString,
            ),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),)
        )
        try:
            self._server.add_insecure_port(f"unix:{self.socket}")
        except RuntimeError as error:  # what gRPC raises for any failure
            raise OSError(f"cannot listen on {self.socket}: {error}") from error
        await self._server.start()
        self.socket.chmod(0o600)

    async def stop(self) -> None:
        """Stop at once; the kubelet then takes every slot for unhealthy."""
        await self._server.stop(None)
        self.socket.unlink(missing_ok=True)

    async def _get_options(self, _: api.Empty, __: Context) -> api.DevicePluginOptions:
        return OPTIONS

    async def _list_and_watch(self, _: api.Empty, __: Context) -> AsyncIterator[bytes]:
        self._streams += 1
        try:
            while True:
                changed, message = self._changed, self._message
                yield message
                await changed.wait()
        finally:
            self._streams -= 1

    async def _allocate(self, request: api.AllocateRequest, _: Context) -> api.AllocateResponse:
        return api.AllocateResponse(
            container_responses=[
                api.ContainerAllocateResponse() for _ in request.container_requests
            ]
        )
