// SPDX-License-Identifier: Apache-2.0
/* A share of a card's time, paid afterwards.
 *
 * What a launch will take of the card is predicted from what the like of it took before; what it
 * took is measured between two marks (timing events of the driver) and charged to an account that
 * all processes of the container share. Between two marks lies an interval; a launch adds its
 * prediction to the open one. The prediction also tells when the card will have nothing left of
 * ours to do: what then passes before the next launch is idle time, and not charged.
 *
 * Pure: no driver, no clock, no lock. All times are nanoseconds of one clock of the host. A struct
 * throttle belongs to one process and one card, and its caller lets one thread in at a time; the
 * account is shared memory that anybody may write to. */
#ifndef VGPU_THROTTLE_H
#define VGPU_THROTTLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define THROTTLE_CLASSES 1024
#define THROTTLE_MARK_EVERY_NS UINT64_C(1000000) /* of predicted work; one costs 2 us */
#define THROTTLE_LONG_NS UINT64_C(1000000)       /* a launch that takes so long is always marked */
#define THROTTLE_HORIZON_NS UINT64_C(20000000)   /* credit grows no further than the share of it */
#define THROTTLE_START_NS UINT64_C(4000) /* from a launch on an idle card to its first work */
#define THROTTLE_AFTER_NS UINT64_C(1500) /* the same, from the return of the driver's launch */
#define THROTTLE_MARK_NS UINT64_C(2000)  /* by which a measured interval is too long */
#define THROTTLE_GAP_NS UINT64_C(1800)   /* between two kernels of a stream the card does nothing */
#define THROTTLE_INNER_GAP_NS UINT64_C(1000)   /* between two of a graph */
#define THROTTLE_DRAIN_NS UINT64_C(2000)       /* from the end of the work to a wait's return */
#define THROTTLE_MOST_DRAIN_NS UINT64_C(16000) /* that is learnt of a program's waits */
#define THROTTLE_AGE_NS UINT64_C(5000000)      /* after which an interval is marked, too */
#define THROTTLE_DOUBT_NS UINT64_C(20000)      /* predicted idle time that is not just believed */
#define THROTTLE_UNKNOWN_NS UINT64_C(5000)     /* guessed of a launch that has no like */
#define THROTTLE_SURPRISE_NS UINT64_C(200000)  /* beyond twice the prediction; less is noise */
#define THROTTLE_TRUST 64    /* launches of a class, after which its batches have one more */
#define THROTTLE_TRUSTED 256 /* after which they have no end */
#define THROTTLE_DEFERRED_NS UINT64_C(100000000) /* owed for want of knowledge: not all at once */
#define THROTTLE_OWED_NS UINT64_C(10000000000)   /* the account holds no more; who took it does */
#define THROTTLE_MOST_UNKNOWN 4                  /* launches under way of which nothing is known */
#define THROTTLE_STALL_NS UINT64_C(100000000)    /* beyond what was predicted, without a mark */
#define THROTTLE_MOST_STALLS 20                  /* times that the wait for the next doubles */

/* The part of struct vgpu_usage_turn that is the account. */
struct throttle_account {
	int64_t *balance_ns;
	uint64_t *refilled_ns;
	uint64_t *stretch;
	uint64_t *deferred_ns;
};

/* Launches of one kernel in one shape, or of one graph. What they took before need not be what they
 * take now: the first ones go in batches, of which the next may begin when all but the last have
 * been measured. */
struct throttle_class {
	uint64_t key; /* 0: free */
	uint64_t cost_ns;
	uint64_t least_ns;    /* that one of them took of late */
	uint64_t batch_begun; /* the number of all launches before it */
	int32_t doubt_ns; /* how little is known of when one will end; negative: they never differ
			   */
	uint32_t until_sample;
	uint32_t launches;
	uint32_t gaps; /* between the kernels of a graph that come one after the other */
	uint32_t left; /* launches of the batch that are still to come; 0: of an unknown one, too */
	uint32_t proven; /* launches in batches; THROTTLE_TRUSTED: there is no bound any more */
	uint16_t tail;   /* launches, the lower bits, at the last one that was found to be one */
	uint16_t period; /* launches from one tail to the next; 0: none has been found */
	uint8_t samples;
	uint8_t is_out;        /* launched with an unknown cost, and not measured yet */
	bool is_graph : 1;     /* the driver's launch returns when the card has long begun */
	bool is_dependent : 1; /* no gap lies before it */
	uint8_t fickle : 5;    /* began to take longer so many samples ago, from MOST_FICKLE on */
	uint8_t calm;          /* tails in a row that took what was predicted */
} __attribute__((aligned(64)));

struct throttle_interval {
	uint64_t predicted_ns;
	uint64_t idle_ns;
	uint64_t begun_ns; /* when its first launch was made */
	uint64_t key;      /* of the only class in it; 0: several */
	uint32_t launches;
	uint32_t starts;        /* of its launches, on an idle card */
	uint64_t least_ns;      /* the least that it is likely to take */
	uint64_t gaps;          /* in the graphs that were launched */
	uint64_t dependent;     /* launches that no gap lies before */
	uint64_t start_ns;      /* before which its first launch cannot have begun */
	uint64_t returned_ns;   /* when the driver has made its first launch, if that is known */
	uint64_t known_idle_ns; /* of one without launches: from a wait's return to its mark */
	bool has_unknown;       /* `key` is the unknown one */
	bool is_in_order;       /* all of it in one stream */
	bool is_bracketed;      /* one launch, from a mark on an idle card on */
	bool is_graph;          /* its first launch is a graph's */
	uint16_t last;          /* the class of the last launch */
	uint16_t unknown;       /* launches in it of which nothing was known */
};

/* First one line of the processor's cache: all that nearly every launch reads and changes. */
struct throttle {
	uint64_t queue_end_ns; /* predicted: then the card has done all that was launched */
	int64_t tokens_ns;     /* predicted work that may be launched without a closer look */
	bool is_known_dry; /* a wait for everything has returned, and nothing was launched since */
	bool times_idle;   /* the next launch's idle time is to be measured, from `drained_ns` on */
	bool wants_idle;   /* idle time is to be measured after the next wait */
	bool may_wait;     /* kernels may wait for others on other cards; that teaches little */
	bool is_broke;     /* all credit is used up, and not yet a batch of it there again */
	bool is_ample; /* there is credit for more than a closer look lets through, and nobody waits
			*/
	uint16_t later_ns; /* than THROTTLE_START_NS: learnt, the driver's launch takes so long */
	struct throttle_interval open;
	uint64_t started_ns; /* of the last launch, on an idle card; 0: the card was busy */
	uint64_t closed_ns;  /* predicted work in intervals that are closed and not finished */
	uint64_t overdue_ns; /* beyond that and the open one's, since the card was seen to be busy
			      * still
			      */
	uint64_t closed_idle_ns;
	uint64_t closed_launches; /* all before the open interval */
	uint64_t drained_ns;      /* when a wait returned */
	uint64_t finished;        /* launches that have been measured */
	uint64_t busy_ns;         /* measured, of this process; without the gaps */
	uint64_t last_end_ns;     /* of the last finished interval */
	uint64_t bracket_ns; /* when the open interval's first mark was made, on an idle card */
	uint64_t drain_ns;   /* learnt: an idle start after a wait takes so much longer */
	uint64_t launch_ns;  /* learnt: of the driver's own launch */
	uint64_t owed_ns;    /* charged to this process beyond what the account holds */
	uint32_t unknown;    /* launches under way of which nothing was known */
	struct throttle_account account;
	struct throttle_class class[THROTTLE_CLASSES] __attribute__((aligned(64)));
};

_Static_assert(offsetof(struct throttle, open.least_ns) == 64,
	       "one line is changed by every launch");

/* What one launch needs to be let through at once. */
struct throttle_gate {
	uint64_t window_ns; /* predicted work that may be under way */
	uint64_t end_ns;    /* launches start before it; UINT64_MAX: no end */
};

static inline uint32_t throttle_place(uint64_t key)
{
	return (uint32_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 54);
}

_Static_assert(THROTTLE_CLASSES == 1 << (64 - 54), "throttle_place takes ten bits");

/* The class of a key, new ones included; a full neighbourhood loses its oldest. */
struct throttle_class *throttle_search(struct throttle *throttle, uint64_t key);

/* The same; nearly always it is where it is looked for first. */
static inline struct throttle_class *throttle_class(struct throttle *throttle, uint64_t key)
{
	struct throttle_class *first = &throttle->class[throttle_place(key)];

	return first->key == key ? first : throttle_search(throttle, key);
}

/* Predicted work in the open interval and in unfinished ones. */
static inline uint64_t throttle_pending(const struct throttle *throttle)
{
	return throttle->closed_ns + throttle->open.predicted_ns;
}

static inline uint64_t throttle_start(const struct throttle *throttle, uint64_t now_ns)
{
	return throttle->queue_end_ns > now_ns ? throttle->queue_end_ns
					       : now_ns + THROTTLE_START_NS;
}

/* Whether the open interval is to be measured now, however little work is predicted in it: kernels
 * may have begun to take longer. */
static inline bool throttle_is_old(const struct throttle *throttle, uint64_t now_ns)
{
	return throttle->open.launches != 0 && now_ns > throttle->open.begun_ns + THROTTLE_AGE_NS;
}

/* Whether the card is predicted to be idle for so long that it has to be asked. */
static inline bool throttle_is_in_doubt(const struct throttle *throttle, uint64_t now_ns)
{
	return throttle->open.launches != 0 && !throttle->is_known_dry &&
	       now_ns > throttle->queue_end_ns + THROTTLE_DOUBT_NS;
}

/* The same, with what has a mark behind it already. */
static inline bool throttle_is_overdue(const struct throttle *throttle, uint64_t now_ns)
{
	return now_ns > throttle->queue_end_ns + THROTTLE_DOUBT_NS && !throttle->is_known_dry &&
	       throttle_pending(throttle) != 0;
}

/* Whether a mark has to stand behind the launch: soon, if it is one of those that take now this and
 * now that, since the card may then be idle before it is predicted to be. */
static inline bool throttle_is_due(const struct throttle *throttle,
				   const struct throttle_class *class)
{
	return throttle->tokens_ns <= (class->doubt_ns > 0 ? class->doubt_ns : 0);
}

/* All of them so far. */
static inline uint64_t throttle_launches(const struct throttle *throttle)
{
	return throttle->closed_launches + throttle->open.launches;
}

/* Whether the card is known to have nothing left of what was launched. */
static inline bool throttle_is_dry(const struct throttle *throttle)
{
	return throttle->is_known_dry || throttle_pending(throttle) == 0;
}

/* Whether nothing speaks against the launch; false: look closer. */
static inline bool throttle_passes(const struct throttle *throttle,
				   const struct throttle_class *class,
				   const struct throttle_gate *gate, uint64_t now_ns)
{
	uint64_t start = throttle_start(throttle, now_ns);

	return class->left != 0 && !throttle_is_due(throttle, class) &&
	       class->cost_ns < THROTTLE_LONG_NS && start < gate->end_ns &&
	       start - now_ns < gate->window_ns && !throttle_is_old(throttle, now_ns);
}

/* Whether something is to be measured, or asked of the card, before or behind the launch. */
static inline bool throttle_must_measure(const struct throttle *throttle,
					 const struct throttle_class *class, uint64_t now_ns)
{
	return class->until_sample <= 1 || throttle->times_idle ||
	       throttle_is_overdue(throttle, now_ns);
}

/* Whether throttle_launched has to follow the launch. Where the card only runs dry because kernels
 * take less than their launches, the driver takes as long as usual. */
static inline bool throttle_must_end(const struct throttle *throttle, uint64_t now_ns)
{
	return throttle->queue_end_ns <= now_ns &&
	       (throttle->open.launches == 0 || throttle->is_known_dry);
}

/* Whether a launch of the class has to wait until others that nothing is known of were measured. */
static inline bool throttle_is_unknown(const struct throttle *throttle,
				       const struct throttle_class *class)
{
	return class->samples == 0 && throttle->unknown != 0 &&
	       (class->is_out || throttle->unknown >= THROTTLE_MOST_UNKNOWN);
}

/* Begins the class's next batch, if its last one is at an end; false: what came before that one has
 * not been measured yet. */
bool throttle_begin_batch(struct throttle *throttle, struct throttle_class *class);

/* The class's launches are no longer waited for: they may themselves wait for what is launched
 * later. */
void throttle_give_up(struct throttle_class *class);

/* Begins what is let through without a closer look, if what was is used up. `is_shared`: somebody
 * may wait for the card. */
void throttle_look(struct throttle *throttle, bool is_shared);

/* Whether the launch is the first one of a batch, and the one before lies in the open interval. */
bool throttle_must_part(const struct throttle *throttle, const struct throttle_class *class);

/* Whether the launch's cost is to be measured by itself, between two marks. */
static inline bool throttle_must_sample(const struct throttle_class *class)
{
	return class->samples == 0 || class->until_sample <= 1;
}

/* The first launch of an interval, and one that is to be measured by itself. */
void throttle_add_first(struct throttle *throttle, const struct throttle_class *class,
			bool is_start, uint64_t now_ns);
void throttle_add_sample(struct throttle *throttle, struct throttle_class *class);

/* Adds a launch to the open interval. `has_end`: throttle_launched follows. */
static inline __attribute__((always_inline)) void
throttle_add(struct throttle *throttle, struct throttle_class *class, bool has_end, uint64_t now_ns)
{
	struct throttle_interval *open = &throttle->open;
	uint64_t start_ns = throttle_start(throttle, now_ns);
	bool is_start = start_ns > throttle->queue_end_ns;
	bool is_unknown = class->samples == 0;
	uint64_t cost_ns = is_unknown ? THROTTLE_UNKNOWN_NS : class->cost_ns;

	if (is_start && !has_end)
		start_ns += throttle->later_ns;
	throttle->started_ns =
		is_start && has_end && (open->launches == 0 || !class->is_graph) ? start_ns : 0;
	if (open->launches == 0) {
		throttle_add_first(throttle, class, is_start, now_ns);
	} else {
		if (is_start) {
			open->idle_ns += start_ns - throttle->queue_end_ns;
			open->starts++;
		}
		if (open->key != class->key && open->key != 0 && !open->has_unknown)
			open->key = 0;
	}
	throttle->is_known_dry = false;
	throttle->times_idle = false;
	open->launches++;
	open->predicted_ns += cost_ns;
	open->least_ns += is_unknown ? cost_ns : class->least_ns;
	if (class->gaps != 0)
		open->gaps += class->gaps;
	if (class->is_dependent && !is_start)
		open->dependent++;
	throttle->queue_end_ns = start_ns + cost_ns;
	throttle->tokens_ns -= (int64_t)cost_ns;
	if (class->doubt_ns > 0 || throttle->is_ample)
		throttle->tokens_ns -= class->doubt_ns;
	open->last = (uint16_t)(class - throttle->class);
	if (class->left != 0) {
		class->left--;
		class->proven += class->proven < THROTTLE_TRUSTED;
	}
	class->launches++;
	if (throttle_must_sample(class))
		throttle_add_sample(throttle, class);
	else
		class->until_sample--;
}

/* The driver's launch has returned; to be said at once, if at all. On an idle card it begins no
 * earlier: after a sleep the driver takes much longer than usual. */
void throttle_launched(struct throttle *throttle, uint64_t now_ns);

/* Ends the open interval at a mark that is recorded now. */
struct throttle_interval throttle_close(struct throttle *throttle);

/* The mark that ended the interval has just been made on an idle card, and the next launch follows.
 */
void throttle_bracket(struct throttle *throttle, struct throttle_interval *closed, uint64_t now_ns);

/* The card was found idle longer than anything was predicted to take, and nothing tells since when:
 * the program waits for the last launch by something that no hook sees. So the launches of that
 * class that are likely to be the next such tails are measured, each by itself. */
void throttle_note_tail(struct throttle *throttle, uint16_t last);

/* Before a launch, when what is known of the one before it is known: whether that was a tail at
 * all. */
static inline void throttle_check_tail(struct throttle *throttle, uint64_t now_ns)
{
	if (throttle->open.launches == 0 &&
	    (throttle->is_known_dry || now_ns <= throttle->queue_end_ns + THROTTLE_DOUBT_NS))
		throttle->class[throttle->open.last].period = 0;
}

/* The mark of a closed interval was recorded late: the card had nothing to do before it. */
void throttle_late(struct throttle *throttle, struct throttle_interval *closed, uint64_t idle_ns);

/* The card has come to the interval's mark at `end_ns`; returns what is to be charged. `now_ns`: of
 * the prediction that follows. */
uint64_t throttle_finish(struct throttle *throttle, const struct throttle_interval *interval,
			 uint64_t end_ns, uint64_t now_ns);

/* By how much a finished interval has taken longer than anybody could know; 0: about what was
 * predicted, or the first one of its like. */
uint64_t throttle_surprise_ns(const struct throttle *throttle,
			      const struct throttle_interval *interval, uint64_t busy_ns);

/* The mark of the oldest unfinished interval has not been reached yet. */
void throttle_unfinished(struct throttle *throttle, const struct throttle_interval *oldest,
			 uint64_t now_ns);

/* The card is still at work, whatever was predicted. True: it takes so much longer than it did that
 * what was launched has to be measured. */
bool throttle_not_dry(struct throttle *throttle, uint64_t now_ns);

/* The card was asked, and has nothing left of what was launched. */
void throttle_dry(struct throttle *throttle, uint64_t now_ns);

/* A wait for everything has returned; `has_blocked`: not at once. */
void throttle_drained(struct throttle *throttle, bool has_blocked, uint64_t now_ns);

/* Credit for the time that has passed, up to the horizon beyond what is pending in the container.
 * What is there already may be more by `kept_ns`. */
void throttle_refill(const struct throttle_account *account, uint32_t percent, uint64_t horizon_ns,
		     uint64_t kept_ns, uint64_t pending_ns, uint64_t now_ns);

/* Pays, of what has come in, what this process owes beyond what the account holds. */
void throttle_repay(struct throttle *throttle);

/* Whether a launch of the class may go although something forbids it: the work that it would wait
 * behind has gone on for far too long, since `begun_ns`, and may itself wait for the program. What
 * has gone so is little, and is charged when that work has ended. */
bool throttle_is_stalled(const struct throttle *throttle, const struct throttle_class *class,
			 const struct throttle_interval *oldest, uint64_t begun_ns,
			 uint64_t now_ns);

/* Charges the busy time before `end_ns`; what other processes of the container were charged for
 * at the same time is not charged twice. Of it `surprise_ns` are deferred: a launch at an old price
 * that took fifty times as long must not keep its program waiting for all of that. What is deferred
 * is little, is never forgiven, and is paid with half as much again for all that follows. Returns
 * what was charged. */
uint64_t throttle_charge(const struct throttle_account *account, uint64_t busy_ns,
			 uint64_t surprise_ns, uint64_t end_ns);

/* The same, of this process, which remembers what the account does not hold. */
void throttle_charge_own(struct throttle *throttle, uint64_t busy_ns, uint64_t surprise_ns,
			 uint64_t end_ns);

/* Credit beyond what is under way; negative: owed. */
int64_t throttle_available(const struct throttle_account *account, uint64_t pending_ns);

/* How long to wait until so much is available. */
uint64_t throttle_lack_ns(int64_t available_ns, uint32_t percent, uint64_t needed_ns);

/* For how long a launch of the class has to wait for credit; 0: it may go. Who has none left waits
 * for `batch_ns` of it, unless one launch takes more. */
uint64_t throttle_wait_ns(struct throttle *throttle, const struct throttle_class *class,
			  uint32_t percent, uint64_t batch_ns, uint64_t pending_ns);

#endif
