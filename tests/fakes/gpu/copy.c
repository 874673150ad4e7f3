/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and fills. Bytes are moved at the call; only the time that it takes lies in the stream.
 * Up to 16 MiB of one call are really moved, so that data survive a round trip and a test that
 * fills a whole card does not need its size in the machine's memory.
 */
#include "context.h"
#include "graph.h"
#include "memory.h"
#include "stream.h"

#include <string.h>

#define MOVED_BYTES (16 * MIB)
#define HOST_BYTES_PER_NS 50     /* PCIe and its kin */
#define DEVICE_BYTES_PER_NS 2000 /* the card's own memory */

static bool on_device(CUdeviceptr address)
{
	const struct region *region = memory_find(address);

	return region != NULL && region->kind != REGION_HOST && region->kind != REGION_REGISTERED;
}

/* Moves the bytes and returns how long the card takes, or false for an address where nothing is. */
static bool move(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, uint64_t *duration_ns)
{
	uint64_t room = bytes;
	uint64_t there = bytes;
	char *target = memory_contents(to, &room);
	const char *source = memory_contents(from, &there);

	if (target == NULL || source == NULL || room < bytes || there < bytes)
		return false;
	memmove(target, source, bytes < MOVED_BYTES ? bytes : MOVED_BYTES);
	bool inside = on_device(to) && on_device(from);
	*duration_ns = bytes / (inside ? DEVICE_BYTES_PER_NS : HOST_BYTES_PER_NS);
	return true;
}

/* Puts the time of an operation into a stream. A synchronous one ends with its call. */
static CUresult run(struct stream *stream, enum graph_node_type type, uint64_t duration_ns,
		    uint64_t *end_ns)
{
	if (stream->capture != NULL)
		return graph_capture(stream, type, duration_ns);
	*end_ns = stream_submit(stream, duration_ns, false);
	return CUDA_SUCCESS;
}

static CUresult copy(const char *function, bool per_thread, CUdeviceptr to, CUdeviceptr from,
		     size_t bytes, CUstream handle, bool wait)
{
	struct context *context = NULL;
	uint64_t end_ns = 0;
	CUresult status = enter_context(function, true, &context);
	if (status != CUDA_SUCCESS || bytes == 0)
		return status;
	{
		DRIVER_LOCKED();
		uint64_t duration_ns = 0;
		struct stream *stream = stream_find(context, handle, per_thread);
		if (stream == NULL)
			return CUDA_ERROR_INVALID_HANDLE;
		if (!move(to, from, bytes, &duration_ns))
			return CUDA_ERROR_INVALID_VALUE;
		status = run(stream, GRAPH_NODE_MEMCPY, duration_ns, &end_ns);
	}
	if (status == CUDA_SUCCESS && wait)
		stream_wait_ns(context, end_ns);
	return status;
}

static CUdeviceptr host(const void *memory)
{
	return (CUdeviceptr)(uintptr_t)memory;
}

/* --- linear copies -------------------------------------------------------------------------- */

static CUresult copy_any(const char *function, bool per_thread, CUdeviceptr to, CUdeviceptr from,
			 size_t bytes)
{
	return copy(function, per_thread, to, from, bytes, NULL, true);
}

static CUresult copy_async(const char *function, bool per_thread, CUdeviceptr to, CUdeviceptr from,
			   size_t bytes, CUstream handle)
{
	return copy(function, per_thread, to, from, bytes, handle, false);
}

STREAM_API(cuMemcpy, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), copy_any, to, from,
	   bytes)
STREAM_API(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr to, const void *from, size_t bytes), copy_any, to,
	   host(from), bytes)
STREAM_API(cuMemcpyDtoH_v2, _ptds, (void *to, CUdeviceptr from, size_t bytes), copy_any, host(to),
	   from, bytes)
STREAM_API(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), copy_any, to,
	   from, bytes)
STREAM_API(cuMemcpyAsync, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle),
	   copy_async, to, from, bytes, handle)
STREAM_API(cuMemcpyHtoDAsync_v2, _ptsz,
	   (CUdeviceptr to, const void *from, size_t bytes, CUstream handle), copy_async, to,
	   host(from), bytes, handle)
STREAM_API(cuMemcpyDtoHAsync_v2, _ptsz, (void *to, CUdeviceptr from, size_t bytes, CUstream handle),
	   copy_async, host(to), from, bytes, handle)
STREAM_API(cuMemcpyDtoDAsync_v2, _ptsz,
	   (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle), copy_async, to, from,
	   bytes, handle)

/* All contexts of a process share one address space. */
static CUresult copy_peer(const char *function, bool per_thread, CUdeviceptr to,
			  CUcontext to_context, CUdeviceptr from, CUcontext from_context,
			  size_t bytes)
{
	(void)to_context;
	(void)from_context;
	return copy(function, per_thread, to, from, bytes, NULL, true);
}

STREAM_API(cuMemcpyPeer, _ptds,
	   (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
	    size_t bytes),
	   copy_peer, to, to_context, from, from_context, bytes)

static CUresult copy_peer_async(const char *function, bool per_thread, CUdeviceptr to,
				CUcontext to_context, CUdeviceptr from, CUcontext from_context,
				size_t bytes, CUstream handle)
{
	(void)to_context;
	(void)from_context;
	return copy(function, per_thread, to, from, bytes, handle, false);
}

STREAM_API(cuMemcpyPeerAsync, _ptsz,
	   (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
	    size_t bytes, CUstream handle),
	   copy_peer_async, to, to_context, from, from_context, bytes, handle)

/* --- two dimensions ------------------------------------------------------------------------- */

struct side {
	size_t x_bytes;
	size_t y;
	int type;
	CUdeviceptr host;
	CUdeviceptr device;
	CUarray array;
	size_t pitch;
};

struct rectangle {
	struct side from;
	struct side to;
	size_t width_bytes;
	size_t height;
};

_Static_assert(sizeof(struct rectangle) == 128, "CUDA");

static CUdeviceptr row_of(const struct side *side, size_t row)
{
	CUdeviceptr base = side->type == CU_MEMORYTYPE_HOST ? side->host : side->device;

	return base + side->x_bytes + (side->y + row) * side->pitch;
}

static CUresult copy_rectangle(const char *function, bool per_thread, const struct rectangle *what,
			       CUstream handle, bool wait)
{
	struct context *context = NULL;
	uint64_t end_ns = 0;
	CUresult status = enter_context(function, what != NULL, &context);
	if (status != CUDA_SUCCESS)
		return status;
	{
		DRIVER_LOCKED();
		uint64_t duration_ns = what->width_bytes * what->height / HOST_BYTES_PER_NS;
		uint64_t row_ns = 0;
		struct stream *stream = stream_find(context, handle, per_thread);
		if (stream == NULL)
			return CUDA_ERROR_INVALID_HANDLE;
		/* What an array holds is not kept. */
		bool kept = what->from.type != CU_MEMORYTYPE_ARRAY &&
			    what->to.type != CU_MEMORYTYPE_ARRAY;
		for (size_t row = 0; kept && row < what->height; row++)
			if (!move(row_of(&what->to, row), row_of(&what->from, row),
				  what->width_bytes, &row_ns))
				return CUDA_ERROR_INVALID_VALUE;
		status = run(stream, GRAPH_NODE_MEMCPY, duration_ns, &end_ns);
	}
	if (status == CUDA_SUCCESS && wait)
		stream_wait_ns(context, end_ns);
	return status;
}

static CUresult copy_2d(const char *function, bool per_thread, const struct rectangle *what)
{
	return copy_rectangle(function, per_thread, what, NULL, true);
}

static CUresult copy_2d_async(const char *function, bool per_thread, const struct rectangle *what,
			      CUstream handle)
{
	return copy_rectangle(function, per_thread, what, handle, false);
}

STREAM_API(cuMemcpy2D_v2, _ptds, (const struct rectangle *what), copy_2d, what)
STREAM_API(cuMemcpy2DUnaligned_v2, _ptds, (const struct rectangle *what), copy_2d, what)
STREAM_API(cuMemcpy2DAsync_v2, _ptsz, (const struct rectangle *what, CUstream handle),
	   copy_2d_async, what, handle)

/* --- fills ---------------------------------------------------------------------------------- */

/* A value of 1, 2 or 4 bytes, over and over, in rows. A plain fill is one row. */
struct fill {
	CUdeviceptr to;
	size_t pitch;
	unsigned int value;
	size_t element_bytes;
	size_t width;
	size_t height;
};

static bool fill_row(const struct fill *fill, size_t row)
{
	uint64_t bytes = fill->width * fill->element_bytes;
	uint64_t room = bytes;
	char *target = memory_contents(fill->to + row * fill->pitch, &room);

	if (target == NULL || room < bytes)
		return false;
	uint64_t moved = bytes < MOVED_BYTES ? bytes : MOVED_BYTES;
	for (uint64_t at = 0; at + fill->element_bytes <= moved; at += fill->element_bytes)
		memcpy(target + at, &fill->value, fill->element_bytes);
	return true;
}

static CUresult run_fill(const char *function, bool per_thread, struct fill fill, CUstream handle)
{
	struct context *context = NULL;
	uint64_t end_ns = 0;
	CUresult status = enter_context(function, fill.to % fill.element_bytes == 0, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct stream *stream = stream_find(context, handle, per_thread);
	if (stream == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	for (size_t row = 0; row < fill.height; row++)
		if (!fill_row(&fill, row))
			return CUDA_ERROR_INVALID_VALUE;
	uint64_t bytes = fill.width * fill.height * fill.element_bytes;
	return run(stream, GRAPH_NODE_MEMSET, bytes / DEVICE_BYTES_PER_NS, &end_ns);
}

/* The six functions of one element type. As in the real driver, a fill of device memory without
 * "Async" in its name does not wait either. */
#define FILL_API(bits, type)                                                                       \
	static CUresult fill_##bits(const char *function, bool per_thread, CUdeviceptr to,         \
				    type value, size_t count, CUstream handle)                     \
	{                                                                                          \
		struct fill fill = {.to = to,                                                      \
				    .value = value,                                                \
				    .element_bytes = sizeof(type),                                 \
				    .width = count,                                                \
				    .height = 1};                                                  \
		return run_fill(function, per_thread, fill, handle);                               \
	}                                                                                          \
	static CUresult fill_2d_##bits(const char *function, bool per_thread, CUdeviceptr to,      \
				       size_t pitch, type value, size_t width, size_t height,      \
				       CUstream handle)                                            \
	{                                                                                          \
		struct fill fill = {.to = to,                                                      \
				    .pitch = pitch,                                                \
				    .value = value,                                                \
				    .element_bytes = sizeof(type),                                 \
				    .width = width,                                                \
				    .height = height};                                             \
		return run_fill(function, per_thread, fill, handle);                               \
	}                                                                                          \
	STREAM_API(cuMemsetD##bits##_v2, _ptds, (CUdeviceptr to, type value, size_t count),        \
		   fill_##bits, to, value, count, NULL)                                            \
	STREAM_API(cuMemsetD##bits##Async, _ptsz,                                                  \
		   (CUdeviceptr to, type value, size_t count, CUstream handle), fill_##bits, to,   \
		   value, count, handle)                                                           \
	STREAM_API(cuMemsetD2D##bits##_v2, _ptds,                                                  \
		   (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),        \
		   fill_2d_##bits, to, pitch, value, width, height, NULL)                          \
	STREAM_API(cuMemsetD2D##bits##Async, _ptsz,                                                \
		   (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,         \
		    CUstream handle),                                                              \
		   fill_2d_##bits, to, pitch, value, width, height, handle)

FILL_API(8, unsigned char)
FILL_API(16, unsigned short)
FILL_API(32, unsigned int)

/* --- managed memory ------------------------------------------------------------------------- */

/* Moves a managed region's whole cost to a card (device >= 0) or off it. */
static CUresult prefetch(const char *function, bool per_thread, CUdeviceptr address, size_t bytes,
			 CUdevice device, CUstream handle)
{
	struct context *context = NULL;
	CUresult status = enter_context(function, bytes != 0, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct region *region = memory_find(address);
	struct stream *stream = stream_find(context, handle, per_thread);
	if (stream == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (region == NULL || region->kind != REGION_MANAGED)
		return CUDA_ERROR_INVALID_VALUE;
	state_give(device_card(region->ordinal), HOLDING_HIDDEN, region->taken_bytes);
	region->taken_bytes = 0;
	if (device < 0)
		return CUDA_SUCCESS;
	if (!device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	/* What does not fit stays where it is, without an error. */
	uint64_t cost = round_up(region->bytes, GRANULE_BYTES);
	if (state_take(device_card(device), HOLDING_HIDDEN, cost)) {
		region->taken_bytes = cost;
		region->ordinal = device;
	}
	(void)stream_submit(stream, bytes / HOST_BYTES_PER_NS, false);
	return CUDA_SUCCESS;
}

STREAM_API(cuMemPrefetchAsync, _ptsz,
	   (CUdeviceptr address, size_t bytes, CUdevice device, CUstream handle), prefetch, address,
	   bytes, device, handle)

struct location {
	int type; /* 1: a device; else some host memory */
	int id;
};

static CUresult prefetch_to(const char *function, bool per_thread, CUdeviceptr address,
			    size_t bytes, struct location where, unsigned int flags,
			    CUstream handle)
{
	(void)flags;
	return prefetch(function, per_thread, address, bytes, where.type == 1 ? where.id : -1,
			handle);
}

STREAM_API(cuMemPrefetchAsync_v2, _ptsz,
	   (CUdeviceptr address, size_t bytes, struct location where, unsigned int flags,
	    CUstream handle),
	   prefetch_to, address, bytes, where, flags, handle)

CUDA_API(cuMemAdvise, (CUdeviceptr address, size_t bytes, int advice, CUdevice device))
{
	(void)address;
	(void)advice;
	(void)device;
	return enter(__func__, bytes != 0);
}
