/* SPDX-License-Identifier: Apache-2.0
 *
 * Regions: every piece of memory that a pointer can lie in, however it was allocated.
 */
#ifndef FAKE_GPU_MEMORY_H
#define FAKE_GPU_MEMORY_H

#include "driver.h"

enum region_kind {
	REGION_LINEAR,     /* cuMemAlloc, cuMemAllocPitch */
	REGION_SMALL,      /* the same up to 1 MiB: a piece of a slab */
	REGION_MANAGED,    /* cuMemAllocManaged; lives at an address of the machine */
	REGION_POOL,       /* cuMemAllocAsync */
	REGION_GRAPH,      /* of a graph's allocation node */
	REGION_VIRTUAL,    /* mapped by cuMemMap */
	REGION_GLOBAL,     /* a module's variable */
	REGION_IMPORT,     /* another process's memory */
	REGION_HOST,       /* cuMemAllocHost, cuMemHostAlloc; lives at an address of the machine */
	REGION_REGISTERED, /* the application's own, cuMemHostRegister */
};

struct region {
	enum region_kind kind;
	CUdeviceptr base;
	uint64_t bytes;       /* as asked for */
	uint64_t taken_bytes; /* of the card, by this region alone */
	CUdevice ordinal;
	struct context *context; /* NULL: survives every context */
	bool freed;              /* in the order of a stream: gone at the next synchronisation */
	bool going;              /* freed, and a synchronisation is at it */
	bool taken;              /* of a graph's memory, by a launch, and not freed since */
	uint64_t holder;         /* number of the instance that was launched then */
	bool orphaned;           /* the graph that it belongs to is destroyed */
	struct slab *slab;
	struct pool *pool;
	unsigned int flags;
	uint64_t number; /* never the same twice in a process */
	/* What was written, if anything. Own mapping of `bytes`, or another region's. */
	char *contents;
	bool contents_borrowed;
	struct region *previous;
	struct region *next;
};

/* All of these: caller holds the driver lock. */

/* Allocate device memory of a context as cuMemAlloc does; NULL when the card is full. */
struct region *memory_allocate(struct context *context, uint64_t bytes);

/* Give a region back, whatever its kind. */
void memory_release(struct region *region);

/* What cuMemFreeAsync has freed of memory that is no pool's stays with the card until then. */
void memory_release_freed(const struct context *context);

/* A new region at an address that the caller has reserved; it takes nothing from the card. */
struct region *memory_describe(enum region_kind kind, CUdeviceptr base, uint64_t bytes,
			       CUdevice ordinal);
void memory_undescribe(struct region *region);

/* The region that an address lies in, or NULL. Host addresses included. */
struct region *memory_find(CUdeviceptr address);

/* The region of that number, or NULL once it is gone. */
struct region *memory_by_number(uint64_t number);

/* Whether a launch of the instance has left something that is not freed. */
bool memory_is_held_by(uint64_t holder);

/* Where the bytes at a device or host address are kept: at most *bytes, cut to the region's end.
 * NULL for a device address where nothing is. */
char *memory_contents(CUdeviceptr address, uint64_t *bytes);

#endif
