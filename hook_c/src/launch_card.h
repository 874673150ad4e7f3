// SPDX-License-Identifier: Apache-2.0
/* A card as the launch hooks of this process know it: what is under way on it, and what measures
 * that. The process's own memory, a lock for each card; no lock is held over a call of the driver,
 * since a record may block until another thread's launch. */
#ifndef VGPU_LAUNCH_CARD_H
#define VGPU_LAUNCH_CARD_H

#include "last_work.h"
#include "launch_clock.h"
#include "sys.h"
#include "tenant.h"
#include "throttle.h"

#define MARKS 64   /* that the card has not come to yet */
#define STREAMS 8  /* of one interval */
#define LINES 32   /* contexts of one process on one card, whose events' times are known */
#define EVENTS 256 /* kept of one context */

#define WINDOW_NS 1000000 /* under way, in a turn or of a small share */
#define SHORT_NS 25000    /* kernels, of which a quarter more may be */

enum mark_state {
	MARK_FREE,
	MARK_RECORDING,
	MARK_RECORDED,
};

struct mark {
	uint32_t state;
	uint32_t count; /* of events; 0: all of it has ended, the time of finding out counts */
	uint64_t context;
	uint64_t closed_ns; /* when it was made, or last seen unfinished: not before */
	uint64_t latest_ns; /* nor after; 0: that is not known */
	struct throttle_interval interval;
	void *event[STREAMS];
};

/* A context's own line of time. */
struct line {
	uint64_t context; /* 0: free */
	void *reference;  /* an event that has happened */
	uint64_t reference_ns;
	uint32_t count;
	void *spare[EVENTS];
};

/* First what every launch looks at: a line of the processor's cache here, and one of the throttle.
 */
struct launch_card {
	uint32_t locked;
	uint16_t is_ready;
	uint16_t index;
	uint32_t stream_count;      /* of the open interval */
	uint32_t syncing;           /* threads that wait for the card */
	uint64_t context;           /* of it or, with no stream yet, of the one before it */
	void *only_stream;          /* since the card was last known to be dry */
	const uint64_t *gate_end;   /* of the slot; never_ends without an arbiter */
	const uint64_t *window_end; /* of all cards; never_ends for a single one */
	uint64_t window_ns;
	void *stream[STREAMS];
	const struct region *region;
	struct throttle throttle __attribute__((aligned(64)));
	uint32_t harvesting; /* one thread at a time, and never waited for */
	uint32_t touching;   /* threads that have streams of the open interval in hand */
	struct vgpu_usage_turn *turn;
	const struct vgpu_limits_device *limits; /* NULL: developer mode */
	uint64_t wanted_ns;      /* when the arbiter was last told that we want the card */
	uint64_t gated_ns;       /* since when a turn is waited for; 0: it is not */
	uint64_t aligned_ns;     /* when a mark was last made on an idle card */
	uint32_t wanted_gate;    /* what the gate said when the arbiter was told */
	uint32_t head;           /* of the marks; the next to be taken */
	uint32_t tail;           /* the oldest unfinished */
	uint32_t awaited;        /* the head when a query last waited for the marks before it */
	uint64_t asked_launches; /* all of them when a query last asked the card */
	struct mark mark[MARKS];
	struct line line[LINES];
};

#define NO_STREAM ((void *)~(uintptr_t)0)
#define SEVERAL_STREAMS ((void *)(~(uintptr_t)0 - 1))

/* Of no slot and no window. */
extern const uint64_t never_ends __attribute__((visibility("hidden")));

_Static_assert(offsetof(struct launch_card, stream) == 64 - sizeof(void *),
	       "what every launch looks at is in one line");

static inline void card_lock(struct launch_card *card)
{
	while (__atomic_exchange_n(&card->locked, 1, __ATOMIC_ACQUIRE) != 0)
		sys_yield();
}

static inline void card_unlock(struct launch_card *card)
{
	__atomic_store_n(&card->locked, 0, __ATOMIC_RELEASE);
}

static inline struct throttle_account card_account(struct vgpu_usage_turn *turn)
{
	return (struct throttle_account){.balance_ns = &turn->balance_ns,
					 .refilled_ns = &turn->refilled_ns,
					 .stretch = &turn->stretch,
					 .deferred_ns = &turn->deferred_ns};
}

/* The card of the stream, which need not be the current context's; NULL: there is none. */
struct launch_card *card_of(struct tenant *tenant, void *stream);

/* Predicted work that may be under way. Fifty launches of 20 us fit in, as programs make them
 * without a wait. */
static inline uint64_t card_window(const struct launch_card *card,
				   const struct throttle_class *class)
{
	return card->window_ns + (class->cost_ns < SHORT_NS ? card->window_ns / 4 : 0);
}

/* Where the others see what we do; another place once the slot was lost. */
static inline struct vgpu_usage_device *card_published(const struct launch_card *card)
{
	uint32_t slot = __atomic_load_n(&card->region->slot, __ATOMIC_RELAXED);

	return &card->region->usage->slot[slot].dev[card->index];
}

/* Under the lock: predicted work that is under way, or was and is not charged yet. */
static inline void card_publish_pending(const struct launch_card *card)
{
	__atomic_store_n(
		&card_published(card)->pending_ns,
		last_work_word(throttle_pending(&card->throttle) + card->throttle.overdue_ns,
			       throttle_is_dry(&card->throttle)),
		__ATOMIC_RELAXED);
}

/* Under the lock: when the queue will have run dry. */
static inline void card_publish(const struct launch_card *card)
{
	uint64_t end = card->throttle.queue_end_ns & ~UINT64_C(1);

	__atomic_store_n(&card_published(card)->queue_end_ns,
			 end | (__atomic_load_n(&card->syncing, __ATOMIC_RELAXED) != 0),
			 __ATOMIC_RELAXED);
}

/* Predicted work under way on the card, of all processes of the container. */
uint64_t card_pending_of_container(const struct tenant *tenant, unsigned int index);

#endif
