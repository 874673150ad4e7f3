// SPDX-License-Identifier: Apache-2.0
/* The living allocations of this process: handle → card, bytes, context.
 *
 * Sharded, so that threads rarely meet; a shard's lock is never held over a call of the driver.
 * Memory comes from mmap: an allocator of the program may itself be inside a call of ours. */
#ifndef VGPU_TABLE_H
#define VGPU_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#define TABLE_SHARDS 64

enum table_kind {
	TABLE_NONE,
	TABLE_MEMORY,  /* CUdeviceptr */
	TABLE_CONTEXT, /* CUcontext */
	TABLE_ARRAY,   /* CUarray, CUmipmappedArray */
	TABLE_OBJECT,  /* memory of cuMemCreate, by a number of our own */
	TABLE_HANDLE,  /* CUmemGenericAllocationHandle of an object */
	TABLE_MAPPING, /* address at which an object is mapped */
	TABLE_GRAPH,   /* CUgraphExec that needs memory */
	TABLE_BODY,    /* graph that a conditional node runs, by node and which of its bodies */
	TABLE_TILE, /* part of a sparse array that an object is mapped to, by a number of our own */
	TABLE_SLAB, /* address of 2 MiB that small allocations are cut from */
};

struct table_entry {
	uint64_t handle;
	uint64_t bytes; /* as asked; quota knows what the driver makes of it; of tiles the array */
	uint64_t owner; /* of memory and arrays the context; of handles, mappings and tiles the
			 * object; of graphs the local memory of their kernels */
	uint32_t card;  /* of graphs the device */
	uint32_t chain; /* of graphs whose kernels come one after the other: how many, and 1 */
	uint32_t refs;  /* of contexts, objects, handles and slabs; of graphs when they were last
			 * launched,  graph_use.c; of bodies how many the node has */
	enum table_kind kind;
};

enum {
	GRAPH_NEW = 1,
	GRAPH_COUNTED, /* and above; graph_use.c */
};

/* `bytes` of a graph: whole megabytes, and 1 if a launch leaves some of it allocated. */
#define GRAPH_LEAVES(entry) (((entry)->bytes & 1) != 0)
#define GRAPH_BYTES(entry) ((entry)->bytes & ~UINT64_C(1))

/* Zeroed memory is an empty table, also the one that a forked child finds. */
struct table {
	struct table_shard {
		uint32_t locked;
		uint32_t capacity; /* a power of two, or 0 */
		uint32_t count;
		struct table_entry *entries;
	} shard[TABLE_SHARDS];
};

/* False: no memory for the table itself. A handle that is already there is replaced, which needs
 * none: the driver has given it anew, so the old one is gone. */
bool table_put(struct table *table, const struct table_entry *entry);

/* Removes the entry and sets *entry; false if there is none. Take before the driver frees, put back
 * if it refuses: after it has freed, another thread may be given the same address. */
bool table_take(struct table *table, enum table_kind kind, uint64_t handle,
		struct table_entry *entry);

/* Adds to the references of the entry and sets *entry to what it is then; removes it when none is
 * left. False if there is none. */
bool table_refer(struct table *table, enum table_kind kind, uint64_t handle, int32_t change,
		 struct table_entry *entry);

/* Adds one to the references of the entry, or puts it with that one. False: no memory. */
bool table_join(struct table *table, const struct table_entry *entry, bool *is_new);

/* Finds the entry whose range holds the address. Looks at the whole table. */
bool table_find_range(struct table *table, enum table_kind kind, uint64_t address,
		      struct table_entry *entry);

/* Takes the next memory or array of the context; false when the cursor has seen the whole table. A
 * cursor begins zeroed. */
struct table_cursor {
	uint32_t shard;
	uint32_t index;
};
bool table_take_of_context(struct table *table, uint64_t context, struct table_cursor *cursor,
			   struct table_entry *entry);

/* The same for the tiles of an array. */
bool table_take_tile(struct table *table, uint64_t array, struct table_cursor *cursor,
		     struct table_entry *entry);

#endif
