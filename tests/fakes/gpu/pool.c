/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream-ordered allocation. A pool has pieces at places of an endless line, and memory of the card
 * behind some of the line's chunks of 32 MiB. A piece goes where the pool must grow least: chunks
 * that are wholly free are moved there, the free rest of others is of use only where it lies.
 * Memory beyond the release threshold goes back at a synchronisation, never by itself; a trim gives
 * back no chunk in which something was freed since the last one (all measured on an H100 and an
 * H200).
 *
 * What is freed is free at once for its own stream, and for another when the card has come to the
 * free; until then a pool grows, and only where it cannot does the other stream wait (the driver's
 * default, REUSE_ALLOW_INTERNAL_DEPENDENCIES).
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
#define ALLOCATION_TYPE_PINNED 1
#define ALLOCATION_TYPE_MANAGED 2

enum attribute {
	REUSE_FIRST = 1,
	REUSE_LAST = 3,
	RELEASE_THRESHOLD = 4,
	RESERVED_CURRENT = 5,
	RESERVED_HIGH = 6,
	USED_CURRENT = 7,
	USED_HIGH = 8,
};

/* Of a pool's line. What has been freed stays until somebody has waited for it. */
struct piece {
	uint64_t start;
	uint64_t end;
	const struct region *region; /* NULL: freed */
	uint64_t stream;             /* where it was freed: its number */
	uint64_t ready_ns;           /* when the card comes to that */
	struct piece *next;          /* in the order of their places */
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
	struct piece *pieces;
	bool *backed; /* by chunk of the line */
	uint64_t chunks;
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

/* Of CUDA 13. Its memory may lie anywhere: here always on the first card. */
static struct pool *managed_pool;

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

static bool is_in_the_way(const struct piece *piece, const struct stream *stream, uint64_t now_ns)
{
	return piece->region != NULL ||
	       (stream != NULL && piece->stream != stream->number && piece->ready_ns > now_ns);
}

static bool overlaps(const struct piece *piece, uint64_t start, uint64_t end)
{
	return piece->start < end && start < piece->end;
}

/* Has memory, and nothing in it that is of use to anybody but the stream. */
static bool is_movable(const struct pool *pool, uint64_t chunk, const struct stream *stream,
		       uint64_t now_ns)
{
	if (!pool->backed[chunk])
		return false;
	for (const struct piece *piece = pool->pieces; piece != NULL; piece = piece->next)
		if (overlaps(piece, chunk * STEP_BYTES, (chunk + 1) * STEP_BYTES) &&
		    is_in_the_way(piece, stream, now_ns))
			return false;
	return true;
}

static bool is_backed(const struct pool *pool, uint64_t chunk)
{
	return chunk < pool->chunks && pool->backed[chunk];
}

/* The chunks that the place lacks, less those that can be moved there. */
static uint64_t growth_at(const struct pool *pool, uint64_t start, uint64_t end,
			  const struct stream *stream, uint64_t now_ns)
{
	uint64_t first = start / STEP_BYTES;
	uint64_t last = (end - 1) / STEP_BYTES;
	uint64_t lacking = 0;
	uint64_t movable = 0;

	for (uint64_t chunk = first; chunk <= last; chunk++)
		lacking += !is_backed(pool, chunk);
	for (uint64_t chunk = 0; chunk < pool->chunks && movable < lacking; chunk++)
		movable +=
			(chunk < first || chunk > last) && is_movable(pool, chunk, stream, now_ns);
	return lacking - movable;
}

/* Where the pool grows least; the next place that is not in the way of anything, again and again.
 */
static uint64_t find_place(const struct pool *pool, uint64_t bytes, const struct stream *stream,
			   uint64_t now_ns, uint64_t *growth)
{
	const struct piece *piece = pool->pieces;
	uint64_t start = 0;
	uint64_t best = 0;

	*growth = UINT64_MAX;
	for (;;) {
		while (piece != NULL && !is_in_the_way(piece, stream, now_ns))
			piece = piece->next;
		if (piece == NULL || piece->start - start >= bytes) {
			uint64_t found = growth_at(pool, start, start + bytes, stream, now_ns);
			if (found < *growth) {
				*growth = found;
				best = start;
			}
		}
		if (piece == NULL)
			return best;
		start = piece->end;
		piece = piece->next;
	}
}

/* What was freed there is no more. */
static bool clear(struct pool *pool, uint64_t start, uint64_t end)
{
	for (struct piece **link = &pool->pieces; *link != NULL;) {
		struct piece *piece = *link;
		if (piece->region != NULL || !overlaps(piece, start, end)) {
			link = &piece->next;
		} else if (piece->start < start && piece->end > end) {
			struct piece *rest = malloc(sizeof(*rest));
			if (rest == NULL)
				return false;
			*rest = *piece;
			rest->start = end;
			piece->end = start;
			piece->next = rest;
			return true;
		} else if (piece->start < start) {
			piece->end = start;
			link = &piece->next;
		} else if (piece->end > end) {
			piece->start = end;
			link = &piece->next;
		} else {
			*link = piece->next;
			free(piece);
		}
	}
	return true;
}

static bool lengthen(struct pool *pool, uint64_t chunks)
{
	if (chunks <= pool->chunks)
		return true;
	bool *longer = realloc(pool->backed, chunks * sizeof(*longer));
	if (longer == NULL)
		return false;
	for (uint64_t chunk = pool->chunks; chunk < chunks; chunk++)
		longer[chunk] = false;
	pool->backed = longer;
	pool->chunks = chunks;
	return true;
}

/* Moves chunks to a place; those that it then still lacks are new. */
static bool back(struct pool *pool, uint64_t start, uint64_t end, const struct stream *stream,
		 uint64_t now_ns)
{
	uint64_t first = start / STEP_BYTES;
	uint64_t last = (end - 1) / STEP_BYTES;
	uint64_t from = 0;

	for (uint64_t chunk = first; chunk <= last; chunk++) {
		if (pool->backed[chunk])
			continue;
		pool->backed[chunk] = true;
		while (from < pool->chunks &&
		       ((from >= first && from <= last) || !is_movable(pool, from, stream, now_ns)))
			from++;
		if (from == pool->chunks)
			continue;
		pool->backed[from] = false;
		if (!clear(pool, from * STEP_BYTES, (from + 1) * STEP_BYTES))
			return false;
	}
	return clear(pool, start, end);
}

static void add_piece(struct pool *pool, struct piece *piece)
{
	struct piece **link = &pool->pieces;

	while (*link != NULL && (*link)->start < piece->start)
		link = &(*link)->next;
	piece->next = *link;
	*link = piece;
}

static uint64_t backed_chunks(const struct pool *pool)
{
	uint64_t count = 0;

	for (uint64_t chunk = 0; chunk < pool->chunks; chunk++)
		count += pool->backed[chunk];
	return count;
}

/* The stream goes on when the others have come to what they have freed. */
static uint64_t wait_for_others(const struct pool *pool, struct stream *stream)
{
	for (const struct piece *piece = pool->pieces; piece != NULL; piece = piece->next)
		if (piece->region == NULL && piece->ready_ns > stream->tail_ns)
			stream->tail_ns = piece->ready_ns;
	return UINT64_MAX;
}

static struct piece *grow(struct pool *pool, uint64_t bytes, struct stream *stream)
{
	struct piece *piece = calloc(1, sizeof(*piece));
	uint64_t now_ns = clock_now_ns();
	uint64_t growth;

	if (piece == NULL)
		return NULL;
	uint64_t start = find_place(pool, bytes, stream, now_ns, &growth);
	/* A test may have it take some steps more than anybody can foresee. */
	uint64_t beyond = growth == 0 ? 0 : (uint64_t)state_fault("pool takes steps");
	if (!state_take(device_card(pool->ordinal), HOLDING_MEMORY,
			(growth + beyond) * STEP_BYTES)) {
		start = find_place(pool, bytes, stream, UINT64_MAX, &growth);
		if (growth != 0) {
			free(piece);
			return NULL;
		}
		now_ns = wait_for_others(pool, stream);
		beyond = 0;
	}
	uint64_t needed = (start + bytes - 1) / STEP_BYTES + 1;
	if (!lengthen(pool, (needed > pool->chunks ? needed : pool->chunks) + beyond) ||
	    !back(pool, start, start + bytes, stream, now_ns)) {
		state_give(device_card(pool->ordinal), HOLDING_MEMORY,
			   (growth + beyond) * STEP_BYTES);
		free(piece);
		return NULL;
	}
	for (uint64_t chunk = pool->chunks - beyond; chunk < pool->chunks; chunk++)
		pool->backed[chunk] = true;
	piece->start = start;
	piece->end = start + bytes;
	add_piece(pool, piece);
	pool->reserved_bytes = backed_chunks(pool) * STEP_BYTES;
	pool->used_bytes += bytes;
	if (pool->used_bytes > pool->used_high_bytes)
		pool->used_high_bytes = pool->used_bytes;
	if (pool->reserved_bytes > pool->reserved_high_bytes)
		pool->reserved_high_bytes = pool->reserved_bytes;
	return piece;
}

/* Somebody has waited for what was freed and is done. */
static void forget_freed(struct pool *pool, uint64_t now_ns)
{
	for (struct piece **link = &pool->pieces; *link != NULL;) {
		struct piece *piece = *link;
		if (piece->region != NULL || piece->ready_ns > now_ns) {
			link = &piece->next;
			continue;
		}
		*link = piece->next;
		free(piece);
	}
}

static bool is_empty(const struct pool *pool, uint64_t chunk)
{
	for (const struct piece *piece = pool->pieces; piece != NULL; piece = piece->next)
		if (overlaps(piece, chunk * STEP_BYTES, (chunk + 1) * STEP_BYTES))
			return false;
	return true;
}

static void shrink(struct pool *pool, uint64_t keep_bytes)
{
	uint64_t reserved = pool->reserved_bytes;

	for (uint64_t chunk = pool->chunks; chunk-- > 0 && reserved > keep_bytes;) {
		if (reserved - keep_bytes < STEP_BYTES || !pool->backed[chunk] ||
		    !is_empty(pool, chunk))
			continue;
		pool->backed[chunk] = false;
		reserved -= STEP_BYTES;
	}
	uint64_t less = pool->reserved_bytes - reserved;

	if (less == 0)
		return;
	/* The number falls first. A test may hold a call here, and others go on meanwhile. */
	pool->reserved_bytes = reserved;
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

	forget_freed(pool, UINT64_MAX);
	shrink(pool, 0);
	while (*link != pool)
		link = &(*link)->next;
	*link = pool->next;
	pool->magic = 0;
	free(pool->backed);
	free(pool);
}

/* Without a stream it is gone at once. */
static void free_piece(struct region *region, const struct stream *stream)
{
	struct pool *pool = region->pool;
	CUdeviceptr base = region->base;
	uint64_t bytes = region->bytes;

	for (struct piece *piece = pool->pieces; piece != NULL; piece = piece->next)
		if (piece->region == region) {
			piece->region = NULL;
			piece->stream = stream != NULL ? stream->number : 0;
			piece->ready_ns = stream != NULL ? stream_ready_ns(stream) : 0;
		}
	if (stream == NULL)
		forget_freed(pool, 0);
	memory_undescribe(region);
	address_release(base, bytes);
	pool->used_bytes -= round_up(bytes, PIECE_BYTES);
	if (pool->destroyed && pool->used_bytes == 0)
		drop(pool);
}

void pool_free(struct region *region)
{
	free_piece(region, NULL);
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
	uint64_t now_ns = clock_now_ns();

	for (struct pool *pool = pools; pool != NULL; pool = pool->next)
		if (pool->ordinal == context->ordinal) {
			forget_freed(pool, now_ns);
			shrink(pool, pool->threshold_bytes);
		}
}

void pool_forget_context(const struct context *context)
{
	for (struct pool *pool = pools; pool != NULL; pool = pool->next)
		if (context->primary && pool->ordinal == context->ordinal) {
			forget_freed(pool, UINT64_MAX);
			shrink(pool, 0);
		}
}

/* --- allocating ----------------------------------------------------------------------------- */

static CUresult allocate_from(struct stream *stream, struct pool *pool, uint64_t bytes,
			      CUdeviceptr *out)
{
	struct piece *piece =
		bytes <= ADDRESS_BYTES ? grow(pool, round_up(bytes, PIECE_BYTES), stream) : NULL;
	if (piece == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUdeviceptr base = address_reserve(bytes);
	struct region *region =
		base != 0 ? memory_describe(REGION_POOL, base, bytes, pool->ordinal) : NULL;
	if (region == NULL) {
		if (base != 0)
			address_release(base, bytes);
		pool->used_bytes -= round_up(bytes, PIECE_BYTES);
		forget_freed(pool, 0);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	region->context = stream->context;
	region->pool = pool;
	piece->region = region;
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
	CUresult status = graph_check_unsafe_locked();
	return status != CUDA_SUCCESS ? status : allocate_from(stream, pool, bytes, out);
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
	status = graph_check_unsafe_locked();
	if (status != CUDA_SUCCESS)
		return status;
	/* What is no pool's stays with the card until a synchronisation, and no query, allocation
	 * or trim changes that (measured; there it must be one of the same stream). */
	if (region->kind == REGION_LINEAR || region->kind == REGION_SMALL)
		region->freed = true;
	else if (region->kind == REGION_POOL)
		free_piece(region, stream);
	else if (region->kind == REGION_GRAPH)
		return graph_free(region, stream);
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
	CUresult status = enter_unsafe(__func__, out != NULL && properties != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	if (properties->allocation_type == ALLOCATION_TYPE_MANAGED) {
		DRIVER_LOCKED();
		*out = add_pool(0);
		return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (properties->location.type != LOCATION_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	/* INVALID_VALUE for a device that does not exist, too (H200, driver 580). */
	if (properties->allocation_type != ALLOCATION_TYPE_PINNED ||
	    !device_valid(properties->location.id))
		return CUDA_ERROR_INVALID_VALUE;
	DRIVER_LOCKED();
	*out = add_pool(properties->location.id);
	return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API(cuMemPoolDestroy, (CUmemoryPool pool))
{
	CUresult status = enter_unsafe(__func__, valid(pool));
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
	CUresult status = enter_unsafe(__func__, valid(pool));
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	shrink(pool, keep_bytes);
	return CUDA_SUCCESS;
}

CUDA_API(cuMemPoolGetAttribute, (CUmemoryPool pool, int attribute, void *out))
{
	CUresult status =
		enter_unsafe(__func__, valid(pool) && out != NULL && attribute >= REUSE_FIRST &&
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
	CUresult status = enter_unsafe(__func__, valid(pool) && value != NULL);
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

static CUresult get_managed_pool(const char *function, CUmemoryPool *out)
{
	CUresult status = enter(function, out != NULL);

	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (managed_pool == NULL)
		managed_pool = add_pool(0);
	*out = managed_pool;
	return managed_pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult get_pool_at(const char *function, CUmemoryPool *out, const struct location *where,
			    int allocation_type, bool is_default)
{
	if (where != NULL && allocation_type == ALLOCATION_TYPE_MANAGED)
		return get_managed_pool(function, out);
	if (where != NULL && where->type != LOCATION_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	return get_pool(function, where != NULL ? out : NULL, where != NULL ? where->id : 0,
			is_default);
}

CUDA_API(cuMemGetDefaultMemPool,
	 (CUmemoryPool * out, const struct location *where, int allocation_type))
{
	return get_pool_at(__func__, out, where, allocation_type, true);
}

CUDA_API(cuMemGetMemPool, (CUmemoryPool * out, const struct location *where, int allocation_type))
{
	return get_pool_at(__func__, out, where, allocation_type, false);
}

static CUresult set_pool(const char *function, CUdevice device, struct pool *pool)
{
	CUresult status = enter_unsafe(function, valid(pool));
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
