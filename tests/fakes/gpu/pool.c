/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream-ordered allocation. A pool reserves memory of the card in steps of 32 MiB, exactly as much
 * as its pieces need; beyond its release threshold it gives memory back at a synchronisation, never
 * by itself (measured). A freed piece is free at once for its own stream, and for another when the
 * card has come to the free; until then a pool grows, and only where it cannot does the other
 * stream wait (the driver's default, REUSE_ALLOW_INTERNAL_DEPENDENCIES).
 */
#include "pool.h"
#include "address.h"
#include "clock.h"
#include "context.h"
#include "graph.h"
#include "memory.h"
#include "stream.h"

#include <stdlib.h>

#define MAGIC 0x504f4f4c
#define STEP_BYTES (32 * MIB)
#define PIECE_BYTES 512
#define LOCATION_DEVICE 1

enum attribute {
	REUSE_FIRST = 1,
	REUSE_LAST = 3,
	RELEASE_THRESHOLD = 4,
	RESERVED_CURRENT = 5,
	RESERVED_HIGH = 6,
	USED_CURRENT = 7,
	USED_HIGH = 8,
};

/* What has been freed in a stream that has not come to it yet. */
struct pending {
	uint64_t stream; /* its number */
	uint64_t ready_ns;
	uint64_t bytes;
	struct pending *next;
};

struct pool {
	uint32_t magic;
	CUdevice ordinal;
	bool is_default;
	bool destroyed; /* goes with its last piece */
	uint64_t reserved_bytes;
	uint64_t reserved_high_bytes;
	uint64_t used_bytes;
	uint64_t used_high_bytes;
	uint64_t stale_bytes; /* freed by cuMemFree, and counted as used for ever */
	struct pending *pending;
	uint64_t threshold_bytes;
	int reuse[REUSE_LAST + 1];
	struct pool *next;
};

static struct pool *pools;
static struct pool *default_pool[FAKE_MAX_CARDS];
static struct pool *current_pool[FAKE_MAX_CARDS]; /* NULL: the default one */

static struct pool *add_pool(CUdevice ordinal)
{
	struct pool *pool = calloc(1, sizeof(*pool));

	if (pool == NULL)
		return NULL;
	pool->magic = MAGIC;
	pool->ordinal = ordinal;
	for (int i = REUSE_FIRST; i <= REUSE_LAST; i++)
		pool->reuse[i] = 1;
	pool->next = pools;
	pools = pool;
	return pool;
}

static struct pool *default_of(CUdevice ordinal)
{
	if (default_pool[ordinal] == NULL) {
		default_pool[ordinal] = add_pool(ordinal);
		if (default_pool[ordinal] != NULL)
			default_pool[ordinal]->is_default = true;
	}
	return default_pool[ordinal];
}

static struct pool *current_of(CUdevice ordinal)
{
	return current_pool[ordinal] != NULL ? current_pool[ordinal] : default_of(ordinal);
}

static bool valid(const struct pool *pool)
{
	return pool != NULL && pool->magic == MAGIC && !pool->destroyed;
}

/* --- growing and shrinking ------------------------------------------------------------------ */

/* What is free and no use to the stream yet; to no stream at all: NULL. */
static uint64_t pending_bytes(struct pool *pool, const struct stream *stream)
{
	uint64_t now_ns = pool->pending != NULL ? clock_now_ns() : 0;
	uint64_t bytes = 0;

	for (struct pending **link = &pool->pending; *link != NULL;) {
		struct pending *pending = *link;
		if (pending->ready_ns <= now_ns) {
			*link = pending->next;
			free(pending);
			continue;
		}
		if (stream == NULL || pending->stream != stream->number)
			bytes += pending->bytes;
		link = &pending->next;
	}
	return bytes;
}

/* A stream takes first what it has freed itself. */
static void take_own(struct pool *pool, const struct stream *stream, uint64_t bytes)
{
	for (struct pending *pending = pool->pending; pending != NULL; pending = pending->next) {
		if (pending->stream != stream->number)
			continue;
		uint64_t part = bytes < pending->bytes ? bytes : pending->bytes;
		pending->bytes -= part;
		bytes -= part;
	}
}

/* The stream goes on when the others have come to what they have freed. */
static void wait_for_pending(struct pool *pool, struct stream *stream)
{
	while (pool->pending != NULL) {
		struct pending *pending = pool->pending;
		if (pending->ready_ns > stream->tail_ns)
			stream->tail_ns = pending->ready_ns;
		pool->pending = pending->next;
		free(pending);
	}
}

static bool grow(struct pool *pool, uint64_t bytes, struct stream *stream)
{
	uint64_t wanted = pool->used_bytes + bytes;
	uint64_t useless = pending_bytes(pool, stream);

	if (wanted + useless > pool->reserved_bytes) {
		/* A test may have it take some steps more than anybody can foresee. */
		uint64_t more = round_up(wanted + useless - pool->reserved_bytes, STEP_BYTES) +
				(uint64_t)state_fault("pool takes steps") * STEP_BYTES;
		if (state_take(device_card(pool->ordinal), HOLDING_MEMORY, more))
			pool->reserved_bytes += more;
		else if (wanted <= pool->reserved_bytes)
			wait_for_pending(pool, stream);
		else
			return false;
	}
	take_own(pool, stream, bytes);
	pool->used_bytes = wanted;
	if (pool->used_bytes > pool->used_high_bytes)
		pool->used_high_bytes = pool->used_bytes;
	if (pool->reserved_bytes > pool->reserved_high_bytes)
		pool->reserved_high_bytes = pool->reserved_bytes;
	return true;
}

static void shrink(struct pool *pool, uint64_t keep_bytes)
{
	uint64_t needed = round_up(pool->used_bytes + pending_bytes(pool, NULL), STEP_BYTES);
	uint64_t keep = keep_bytes > needed ? keep_bytes : needed;

	if (keep >= pool->reserved_bytes)
		return;
	uint64_t less = pool->reserved_bytes - keep;

	/* The number falls first. A test may hold a call here, and others go on meanwhile. */
	pool->reserved_bytes = keep;
	if (state_map()->faults_high != 0) {
		driver_unlock(NULL);
		(void)state_fault("pool gives back");
		driver_lock();
	}
	state_give(device_card(pool->ordinal), HOLDING_MEMORY, less);
}

static void drop(struct pool *pool)
{
	struct pool **link = &pools;

	while (pool->pending != NULL) {
		struct pending *pending = pool->pending;
		pool->pending = pending->next;
		free(pending);
	}
	shrink(pool, 0);
	while (*link != pool)
		link = &(*link)->next;
	*link = pool->next;
	pool->magic = 0;
	free(pool);
}

void pool_free(struct region *region)
{
	struct pool *pool = region->pool;
	CUdeviceptr base = region->base;
	uint64_t bytes = region->bytes;

	memory_undescribe(region);
	address_release(base, bytes);
	pool->used_bytes -= round_up(bytes, PIECE_BYTES);
	if (pool->destroyed && pool->used_bytes == 0)
		drop(pool);
}

static void free_in_stream(struct region *region, const struct stream *stream)
{
	struct pool *pool = region->pool;
	struct pending *pending = malloc(sizeof(*pending));

	if (pending != NULL && !pool->destroyed) {
		*pending = (struct pending){.stream = stream->number,
					    .ready_ns = stream_ready_ns(stream),
					    .bytes = round_up(region->bytes, PIECE_BYTES),
					    .next = pool->pending};
		pool->pending = pending;
	} else {
		free(pending);
	}
	pool_free(region);
}

void pool_free_at_once(struct region *region)
{
	struct pool *pool = region->pool;
	bool goes = pool->destroyed;

	pool->stale_bytes += round_up(region->bytes, PIECE_BYTES);
	pool_free(region);
	if (!goes)
		shrink(pool, pool->threshold_bytes);
}

void pool_trim_idle(const struct context *context)
{
	for (struct pool *pool = pools; pool != NULL; pool = pool->next)
		if (pool->ordinal == context->ordinal)
			shrink(pool, pool->threshold_bytes);
}

void pool_forget_context(const struct context *context)
{
	for (struct pool *pool = pools; pool != NULL; pool = pool->next)
		if (context->primary && pool->ordinal == context->ordinal)
			shrink(pool, 0);
}

/* --- allocating ----------------------------------------------------------------------------- */

static CUresult allocate_from(struct stream *stream, struct pool *pool, uint64_t bytes,
			      CUdeviceptr *out)
{
	if (bytes > ADDRESS_BYTES || !grow(pool, round_up(bytes, PIECE_BYTES), stream))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUdeviceptr base = address_reserve(bytes);
	struct region *region =
		base != 0 ? memory_describe(REGION_POOL, base, bytes, pool->ordinal) : NULL;
	if (region == NULL) {
		if (base != 0)
			address_release(base, bytes);
		pool->used_bytes -= round_up(bytes, PIECE_BYTES);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	region->context = stream->context;
	region->pool = pool;
	*out = base;
	return CUDA_SUCCESS;
}

static CUresult allocate_in(struct context *context, bool per_thread, CUdeviceptr *out,
			    size_t bytes, struct pool *pool, bool named, CUstream handle)
{
	DRIVER_LOCKED();
	struct stream *stream = stream_find(context, handle, per_thread);
	if (stream == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!named)
		pool = current_of(context->ordinal);
	if (!valid(pool))
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->capture != NULL)
		return graph_capture_allocation(stream, bytes, out);
	return allocate_from(stream, pool, bytes, out);
}

static CUresult allocate(const char *function, bool per_thread, CUdeviceptr *out, size_t bytes,
			 struct pool *pool, bool named, CUstream handle)
{
	struct context *context = NULL;
	CUresult status = enter_context(function, out != NULL && bytes != 0, &context);
	if (status == CUDA_SUCCESS)
		status = allocate_in(context, per_thread, out, bytes, pool, named, handle);
	/* A test may hold a call here: the pool has grown, and the caller does not know yet. */
	if (status == CUDA_SUCCESS)
		(void)state_fault("pool has given");
	return status;
}

static CUresult allocate_async(const char *function, bool per_thread, CUdeviceptr *out,
			       size_t bytes, CUstream handle)
{
	return allocate(function, per_thread, out, bytes, NULL, false, handle);
}

STREAM_API(cuMemAllocAsync, _ptsz, (CUdeviceptr * out, size_t bytes, CUstream handle),
	   allocate_async, out, bytes, handle)

static CUresult allocate_from_pool(const char *function, bool per_thread, CUdeviceptr *out,
				   size_t bytes, CUmemoryPool pool, CUstream handle)
{
	return allocate(function, per_thread, out, bytes, pool, true, handle);
}

STREAM_API(cuMemAllocFromPoolAsync, _ptsz,
	   (CUdeviceptr * out, size_t bytes, CUmemoryPool pool, CUstream handle),
	   allocate_from_pool, out, bytes, pool, handle)

static CUresult free_async(const char *function, bool per_thread, CUdeviceptr address,
			   CUstream handle)
{
	struct context *context = NULL;
	CUresult status = enter_context(function, true, &context);
	if (status != CUDA_SUCCESS || address == 0)
		return status;
	DRIVER_LOCKED();
	struct stream *stream = stream_find(context, handle, per_thread);
	struct region *region = memory_find(address);
	if (stream == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (region == NULL || region->base != address || region->freed ||
	    (region->kind != REGION_POOL && region->kind != REGION_LINEAR &&
	     region->kind != REGION_SMALL && region->kind != REGION_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->capture != NULL)
		return graph_capture_release(stream, address);
	/* What is no pool's stays with the card until a synchronisation, and no query, allocation
	 * or trim changes that (measured; there it must be one of the same stream). */
	if (region->kind == REGION_LINEAR || region->kind == REGION_SMALL)
		region->freed = true;
	else if (region->kind == REGION_POOL)
		free_in_stream(region, stream);
	else
		memory_release(region);
	return CUDA_SUCCESS;
}

STREAM_API(cuMemFreeAsync, _ptsz, (CUdeviceptr address, CUstream handle), free_async, address,
	   handle)

/* --- pools themselves ----------------------------------------------------------------------- */

struct location {
	int type;
	int id;
};

struct pool_properties {
	int allocation_type;
	int handle_types;
	struct location location;
	void *security;
	size_t max_bytes;
	unsigned short usage;
	unsigned char reserved[54];
};

_Static_assert(sizeof(struct pool_properties) == 88, "CUDA");

CUDA_API(cuMemPoolCreate, (CUmemoryPool * out, const struct pool_properties *properties))
{
	CUresult status = enter(__func__, out != NULL && properties != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	if (properties->location.type != LOCATION_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!device_valid(properties->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	DRIVER_LOCKED();
	*out = add_pool(properties->location.id);
	return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API(cuMemPoolDestroy, (CUmemoryPool pool))
{
	CUresult status = enter(__func__, valid(pool));
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (pool->is_default)
		return CUDA_ERROR_INVALID_VALUE;
	if (current_pool[pool->ordinal] == pool)
		current_pool[pool->ordinal] = NULL;
	pool->destroyed = true;
	if (pool->used_bytes == 0)
		drop(pool);
	return CUDA_SUCCESS;
}

CUDA_API(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep_bytes))
{
	CUresult status = enter(__func__, valid(pool));
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	shrink(pool, keep_bytes);
	return CUDA_SUCCESS;
}

CUDA_API(cuMemPoolGetAttribute, (CUmemoryPool pool, int attribute, void *out))
{
	CUresult status = enter(__func__, valid(pool) && out != NULL && attribute >= REUSE_FIRST &&
						  attribute <= USED_HIGH);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (attribute <= REUSE_LAST) {
		*(int *)out = pool->reuse[attribute];
		return CUDA_SUCCESS;
	}
	const uint64_t values[] = {[RELEASE_THRESHOLD] = pool->threshold_bytes,
				   [RESERVED_CURRENT] = pool->reserved_bytes,
				   [RESERVED_HIGH] = pool->reserved_high_bytes,
				   [USED_CURRENT] = pool->used_bytes + pool->stale_bytes,
				   [USED_HIGH] = pool->used_high_bytes};
	*(uint64_t *)out = values[attribute];
	return CUDA_SUCCESS;
}

CUDA_API(cuMemPoolSetAttribute, (CUmemoryPool pool, int attribute, const void *value))
{
	CUresult status = enter(__func__, valid(pool) && value != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (attribute >= REUSE_FIRST && attribute <= REUSE_LAST) {
		pool->reuse[attribute] = *(const int *)value;
		return CUDA_SUCCESS;
	}
	uint64_t number = *(const uint64_t *)value;
	if (attribute == RELEASE_THRESHOLD)
		pool->threshold_bytes = number;
	else if (attribute == RESERVED_HIGH && number == 0)
		pool->reserved_high_bytes = pool->reserved_bytes;
	else if (attribute == USED_HIGH && number == 0)
		pool->used_high_bytes = pool->used_bytes;
	else
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUDA_API(cuMemPoolSetAccess, (CUmemoryPool pool, const void *access, size_t count))
{
	(void)count;
	return enter(__func__, valid(pool) && access != NULL);
}

static CUresult get_pool(const char *function, CUmemoryPool *out, CUdevice device, bool is_default)
{
	CUresult status = enter(function, out != NULL);
	if (status == CUDA_SUCCESS && !device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	*out = is_default ? default_of(device) : current_of(device);
	return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API(cuDeviceGetDefaultMemPool, (CUmemoryPool * out, CUdevice device))
{
	return get_pool(__func__, out, device, true);
}

CUDA_API(cuDeviceGetMemPool, (CUmemoryPool * out, CUdevice device))
{
	return get_pool(__func__, out, device, false);
}

static CUresult get_pool_at(const char *function, CUmemoryPool *out, const struct location *where,
			    bool is_default)
{
	if (where != NULL && where->type != LOCATION_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	return get_pool(function, where != NULL ? out : NULL, where != NULL ? where->id : 0,
			is_default);
}

CUDA_API(cuMemGetDefaultMemPool,
	 (CUmemoryPool * out, const struct location *where, int allocation_type))
{
	(void)allocation_type;
	return get_pool_at(__func__, out, where, true);
}

CUDA_API(cuMemGetMemPool, (CUmemoryPool * out, const struct location *where, int allocation_type))
{
	(void)allocation_type;
	return get_pool_at(__func__, out, where, false);
}

static CUresult set_pool(const char *function, CUdevice device, struct pool *pool)
{
	CUresult status = enter(function, valid(pool));
	if (status == CUDA_SUCCESS && !device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (pool->ordinal != device)
		return CUDA_ERROR_INVALID_VALUE;
	current_pool[device] = pool;
	return CUDA_SUCCESS;
}

CUDA_API(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool))
{
	return set_pool(__func__, device, pool);
}

CUDA_API(cuMemSetMemPool, (const struct location *where, int allocation_type, CUmemoryPool pool))
{
	(void)allocation_type;
	if (where != NULL && where->type != LOCATION_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	return set_pool(__func__, where != NULL ? where->id : -1, pool);
}
