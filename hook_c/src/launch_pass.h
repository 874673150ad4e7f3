// SPDX-License-Identifier: Apache-2.0
/* Where a launch waits that has no credit, no turn or no window. */
#ifndef VGPU_LAUNCH_PASS_H
#define VGPU_LAUNCH_PASS_H

#include "launch_card.h"

/* What a launch has waited for. */
struct launch_waited {
	bool for_turn;
	bool for_credit;
};

/* Looks at everything, and waits as long as it has to. Returns with the lock held. */
struct throttle_class *launch_pass(struct launch_card *card, struct tenant *tenant, uint64_t key,
				   struct launch_waited *waited);

#endif
