// SPDX-License-Identifier: Apache-2.0
/* This process as a tenant: what is enforced in it, and the state that this needs.
 *
 * Managed: the library was loaded from /dev/vgpu, or the container has a limits file. Everything
 * must be in order then, or no GPU is used. Developer: neither, but a CUDA_DEVICE_* limit is set.
 * Else inert: every hook only passes on, and no file is ever opened.
 *
 * All state is in pages that a forked child finds zeroed: it begins as a new process, whatever
 * threads of its parent were doing, and takes a slot of its own when it uses CUDA. */
#ifndef VGPU_TENANT_H
#define VGPU_TENANT_H

#include "limits.h"
#include "quota.h"
#include "region.h"
#include "table.h"
#include "waits.h"

#include <stdbool.h>

#define TENANT_MAX_ORDINALS 64
#define TENANT_MADE_POOLS 256 /* what the program makes has these places */
/* A card's own pool and that of its graphs always have one. */
#define TENANT_MAX_POOLS (TENANT_MADE_POOLS + 2 * VGPU_MAX_DEVICES)
#define TENANT_FREED 256 /* places of a block */
#define TENANT_MAX_STREAMS 32
#define TENANT_MAX_LOCALS 256 /* contexts; so many fill several cards by their mere cost */

enum {
	TENANT_POOL_FREE,
	TENANT_POOL_TAKEN, /* being filled in */
	TENANT_POOL_LIVE,
	TENANT_POOL_ENDED, /* destroyed, and free when nobody is at it any more */
};

/* What launches of graphs may have in use of a device's memory for them; graph_use.c. */
struct tenant_graphs {
	uint32_t locked;
	uint32_t calls;       /* launches that are being made */
	uint32_t begun;       /* so far */
	uint32_t epoch;       /* grows whenever it is known what is in use */
	uint32_t first_epoch; /* since when something is */
	uint64_t stream;      /* the only one with launches since then; 0: none */
	struct tenant_graphs_sum {
		uint64_t bytes;
		uint64_t left_bytes; /* of that: by those that leave something allocated */
	} all, recent; /* of the instances launched in or after first_epoch; what was known in use,
			* and the instances launched in this one */
};

/* A memory pool of the driver that this process takes device memory from; hook_pool.c, and what
 * it is charged: pool_account.c. What an allocation looks at stands in one line. */
struct tenant_pool {
	uint32_t state;
	uint32_t card;
	void *handle;  /* of the memory of graphs: none */
	uint64_t word; /* what the account holds for it */
	uint64_t at;   /* who is at it, and by how much they may make it grow */
	uint64_t past; /* of what the account holds: asked for and not granted */
	int device;
	uint32_t tight;     /* 1: a call is under way that is charged for less than it may take */
	bool is_graph;      /* one a device */
	uint64_t threshold; /* how much the program lets it keep; the driver's own is without end */
	uint64_t undone;    /* freed by us with cuMemFree, and counted as used for ever */
	struct tenant_graphs graphs;
	uint64_t pad[7];
};

_Static_assert(sizeof(struct tenant_pool) == 192, "whole lines; the first begins a page");

/* The local memory of a context, once it has grown; hook_local.c. */
struct tenant_local {
	uint64_t context; /* 0: free */
	uint64_t threads;
	uint64_t charged; /* bytes a thread in the account */
	uint64_t settled; /* bytes a thread that the driver is known to have taken */
	uint32_t card;
	uint32_t calls; /* under way, which have charged and have not yet had their answer */
};

/* A stream that pools' memory has been freed in; hook_streams.c. */
struct tenant_stream {
	uint64_t name; /* 0: free */
	uint64_t context;
	uint32_t has_freed; /* and is not known to have come to it */
	uint32_t users;     /* threads that are about to put an event into it */
};

enum {
	TENANT_FREED_NONE,
	TENANT_FREED_TAKEN, /* one thread is at it */
	TENANT_FREED_PENDING,
	TENANT_FREED_DONE, /* its stream has come to the free */
};

/* When a wait of ours for a free was over, by the clock and by the waits of all threads. */
struct tenant_done {
	uint64_t ns;
	struct waits_moment waits;
};

/* Memory that the program has freed in the order of a stream and the driver still keeps;
 * hook_freed.c. */
struct tenant_freed {
	uint32_t state;
	uint32_t card;
	uint64_t address;
	uint64_t bytes;  /* as asked */
	uint64_t owner;  /* the context that it was taken in */
	uint64_t object; /* or a mapping of an object of cuMemCreate that is being undone; else 0 */
	void *event;     /* behind the free */
	struct tenant_done done;
};

/* Blocks are added, and never go. */
struct tenant_freed_block {
	struct tenant_freed freed[TENANT_FREED];
	struct tenant_freed_block *next;
};

enum tenant_state {
	TENANT_INERT,
	TENANT_ENFORCED,
	TENANT_REFUSED, /* no GPU for this process; `reason` says why */
};

struct tenant {
	struct tenant_pool pool[TENANT_MAX_POOLS];
	uint32_t stage; /* tenant.c */
	/* What nearly every call looks at stands in one line. */
	uint32_t has_one_device; /* 1: the process sees no other than ordinal 0 */
	uint32_t pool_count;     /* pools at or above this index were never used */
	uint32_t freed_count;
	uint32_t giving;        /* calls of the driver under way that make pools smaller */
	uint32_t plain_frees;   /* 1: cuMemFree may have taken memory from pools */
	uint32_t pools_version; /* grows when a device may have another current pool */
	uint32_t contexts;      /* living ones of this process */
	uint32_t tiles;         /* 1: there may be some in the table */
	uint32_t lost_bodies;   /* 1: of some conditional nodes the bodies are not known */
	struct waits waits;
	uint64_t selections;  /* of devices' pools: how many are under way, and a version */
	struct region region; /* every launch reads its slot */
	/* By ordinal: 0 not known yet, 1 not promised, else card + 2. */
	uint32_t card_of_ordinal[TENANT_MAX_ORDINALS];
	struct limits limits;
	struct quota quota;
	struct table table;
	struct reason reason;
	/* By ordinal: the version, and the index + 1 of the current pool then. */
	uint64_t pool_of_ordinal[TENANT_MAX_ORDINALS];
	uint32_t pools_locked; /* while one is added; never over a call of the driver */
	struct tenant_stream stream[TENANT_MAX_STREAMS];
	uint64_t threads_of_ordinal[TENANT_MAX_ORDINALS]; /* 0 not asked yet */
	uint32_t local_locked;                            /* never over a call of the driver */
	struct tenant_local local[TENANT_MAX_LOCALS];
	struct tenant_freed_block freed;
	uint32_t slabs[VGPU_MAX_DEVICES]; /* by card: that small memory holds; slabs.c */
	uint64_t last_object;             /* number of the last object of cuMemCreate */
	/* By card: the primary context, while it is charged. */
	struct tenant_primary {
		uint32_t charged;
		uint64_t bytes;
		uint64_t context;
	} primary[VGPU_MAX_DEVICES];
};

bool tenant_is_inert(void);

/* Whether that is the last word: libc may not have its environment yet. */
bool tenant_is_known(void);

/* Developer mode numbers cards as the process sees them; else they are known by UUID only. */
bool tenant_is_developer(void);

/* Reads limits and usage; enough to report. The first call of a process opens the two files; one
 * that cannot is refused, and the next call tries again. */
enum tenant_state tenant_open(struct tenant **tenant);

/* The same, and a slot of the usage file: before anything is charged. */
enum tenant_state tenant_join(struct tenant **tenant);

/* The tenant if this process has joined, else NULL. For what can only follow an allocation. */
struct tenant *tenant_joined(void);

/* From now on no GPU is used by this process: what was found out about it cannot change. */
void tenant_refuse(struct tenant *tenant);

#endif
