# SPDX-License-Identifier: Apache-2.0
"""The standard gRPC health service, without the health-checking package, which Debian lacks.

Its two messages have one field each, number 1: `string service` and `enum status`. Those are the
bytes of protobuf's own StringValue and Int32Value, so that no generated code is needed.
Source: grpc/health/v1/health.proto.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

SERVING = 1
NOT_SERVING = 2
SERVICE_UNKNOWN = 3

SERVICES = ("", "vgpu.v1.SchedulerCache")

Context = grpc.aio.ServicerContext[Any, Any]


class Health:
    """Serving, from `start` where that is awaited, until `stop`."""

    def __init__(self, *, started: bool = True) -> None:
        self._started = asyncio.Event()
        self._stopped = asyncio.Event()
        if started:
            self._started.set()

    def start(self) -> None:
        """Tell checkers and watchers that calls are answered from now on."""
        self._started.set()

    def stop(self) -> None:
        """Tell checkers and watchers that no new call should come."""
        self._stopped.set()
        self._started.set()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service."""
        handlers = {
            "Check": grpc.unary_unary_rpc_method_handler(
                self._check, StringValue.FromString, Int32Value.SerializeToString
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(
                self._watch, StringValue.FromString, Int32Value.SerializeToString
            ),
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("grpc.health.v1.Health", handlers),)
        )

    def _status(self) -> Int32Value:
        serving = self._started.is_set() and not self._stopped.is_set()
        return Int32Value(value=SERVING if serving else NOT_SERVING)

    async def _check(self, request: StringValue, context: Context) -> Int32Value:
        if request.value not in SERVICES:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"no service {request.value} is served here"
            )
        return self._status()

    async def _watch(self, request: StringValue, context: Context) -> AsyncIterator[Int32Value]:
        if request.value not in SERVICES:
            yield Int32Value(value=SERVICE_UNKNOWN)
            return
        said = 0
        while True:
            status = self._status()
            if status.value != said:
                # While this was on its way it may have changed again.
                yield status
                said = status.value
            elif self._stopped.is_set():
                return
            else:
                await (self._stopped if self._started.is_set() else self._started).wait()
