// SPDX-License-Identifier: Apache-2.0
#include "last_work.h"

#include "throttle.h"

/* Beyond what was predicted. A process that another one follows is found dead soon; of one that has
 * ended long before, most of the time since then is no work. */
#define LONGEST_OVERDUE_NS UINT64_C(1000000000)

/* The card's time for it; every number may be forged. */
static uint64_t busy_of(uint64_t pending_word, uint64_t end_word, uint64_t now_ns)
{
	uint64_t pending_ns = pending_word & ~UINT64_C(1);
	uint64_t end_ns = end_word & ~UINT64_C(1);
	bool is_over = pending_word == pending_ns;
	uint64_t busy_ns = pending_ns < THROTTLE_OWED_NS ? pending_ns : THROTTLE_OWED_NS;

	if (is_over)
		return busy_ns;
	if (now_ns < end_ns) /* the rest of it ended with the process */
		return busy_ns > end_ns - now_ns ? busy_ns - (end_ns - now_ns) : 0;
	return busy_ns +
	       (now_ns - end_ns < LONGEST_OVERDUE_NS ? now_ns - end_ns : LONGEST_OVERDUE_NS);
}

void last_work_charge(struct vgpu_usage *usage, struct vgpu_usage_slot *slot, uint64_t now_ns)
{
	for (unsigned int card = 0; card < VGPU_MAX_DEVICES; card++) {
		struct vgpu_usage_turn *turn = &usage->turn[card];
		struct vgpu_usage_device *dev = &slot->dev[card];
		const struct throttle_account account = {.balance_ns = &turn->balance_ns,
							 .refilled_ns = &turn->refilled_ns,
							 .stretch = &turn->stretch,
							 .deferred_ns = &turn->deferred_ns};
		uint64_t pending = __atomic_exchange_n(&dev->pending_ns, 0, __ATOMIC_RELAXED);
		uint64_t end = __atomic_exchange_n(&dev->queue_end_ns, 0, __ATOMIC_RELAXED);
		uint64_t busy_ns = busy_of(pending, end, now_ns);

		if (busy_ns != 0)
			throttle_charge(&account, busy_ns, 0, now_ns);
	}
}
