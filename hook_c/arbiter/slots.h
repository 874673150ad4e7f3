// SPDX-License-Identifier: Apache-2.0
/* Who has a card when several containers want it: one at a time, for slots of some milliseconds, in
 * proportion to their weights (weighted virtual time). The end of a slot is given to its owner as a
 * time, and its launches stop in time, so that the card has run dry when the next one begins.
 * A container with several cards has them all at once or none of them: its kernels may wait for
 * each other. Containers on other cards of the same group have theirs at the same time.
 *
 * Pure: no file, no clock, no thread. Times are nanoseconds of CLOCK_MONOTONIC. */
#ifndef VGPU_SLOTS_H
#define VGPU_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#define SLOTS_TENANTS 256
#define SLOTS_CARDS 64

#define SLOTS_QUANTUM_NS UINT64_C(5000000) /* the least turn, after which others may cut in */
/* A shorter rest of a turn is not used: half a quantum, in which libvgpu begins any kernel, and a
 * bit */
#define SLOTS_LEAST_NS UINT64_C(2800000)
#define SLOTS_EARLY_NS UINT64_C(120000) /* a waiter is woken so long before its turn */
#define SLOTS_HEAD_NS UINT64_C(25000)   /* from its first launch until the card can change to it */
#define SLOTS_LEAD_NS UINT64_C(60000)   /* and one that begins as soon as it is told */
#define SLOTS_AHEAD_NS UINT64_C(50000000)     /* of its time, by which a tenant may be ahead */
#define SLOTS_DEFERRED_NS UINT64_C(100000000) /* overdrawn unawares: not paid for all at once */
#define SLOTS_IDLE_NS UINT64_C(200000)        /* without work: the turn is over */
#define SLOTS_FIRST_NS UINT64_C(1000000)      /* within it the first work of a turn has to come */
#define SLOTS_WANT_NS UINT64_C(10000000)      /* for so long a want counts that is not repeated */
#define SLOTS_ALONE_NS UINT64_C(20000000)     /* without another's want: no end to the turn */
#define SLOTS_SYNC_NS UINT64_C(5000000)       /* a thread in a wait is waited for so long */
#define SLOTS_STUCK_NS UINT64_C(200000)     /* over its time: may wait for another card's launch */
#define SLOTS_MOMENT_NS UINT64_C(400000)    /* which it is then given the time for */
#define SLOTS_UNBLOCK_NS UINT64_C(50000000) /* after so long another moment helps no more */
#define SLOTS_DRAIN_NS UINT64_C(500000000)  /* then the card's own slicing has to do */

struct slots_tenant {
	bool is_used;
	uint32_t weight; /* not 0 */
	uint64_t cards;  /* a bit a card; 0 keeps it out */
	/* what it says; set before every step */
	uint64_t wanted_ns;
	uint64_t queue_end_ns;
	bool is_syncing;
	bool is_punctual; /* heeds grant_from_ns */
	/* what it gets: launches that start before; 0 none, UINT64_MAX without end */
	uint64_t grant_until_ns;
	uint64_t grant_from_ns; /* not before: their work comes when the owner before has run dry */
	/* inner */
	uint64_t virtual_ns;
	uint64_t turn_virtual_ns; /* with which its turn began */
	uint64_t granted_ns;
	uint64_t charged_ns;  /* until then its time is in virtual_ns */
	uint64_t deferred_ns; /* that it took, and is not in virtual_ns yet */
	uint64_t held_ns;     /* for display */
	bool is_owner;
	uint64_t turns;
};

/* Tenants that share cards, directly or through others. */
struct slots_group {
	uint64_t cards;
	uint64_t slot_end_ns;
	uint64_t contended_ns; /* when more than the owners last wanted the cards */
	uint64_t drain_ns;     /* since when the owners' queues are awaited; 0: they are not */
	uint64_t due_ns;       /* when they should have run dry */
	uint64_t virtual_ns;
	uint64_t behind_ns; /* by which it may be behind, at most */
	bool is_open;       /* the turn has no end */
};

struct slots {
	struct slots_tenant tenant[SLOTS_TENANTS];
	struct slots_group group[SLOTS_CARDS];
	unsigned int group_count;
};

/* After a change of tenants: finds the groups anew. Turns and virtual time begin anew. */
void slots_regroup(struct slots *slots);

/* Decides what is due and returns when to come again at the latest. Every change of a tenant's
 * want is a reason to come before. */
uint64_t slots_step(struct slots *slots, uint64_t now_ns);

#endif
