// SPDX-License-Identifier: Apache-2.0
/* Where a launch waits that has no credit, no turn or no window. */
#ifndef VGPU_LAUNCH_PASS_H
#define VGPU_LAUNCH_PASS_H

#include "launch_card.h"

/* Looks at everything, and waits as long as it has to. Returns with the lock held. `has_waited`:
 * for a turn of the card. */
struct throttle_class *launch_pass(struct launch_card *card, struct tenant *tenant, uint64_t key,
				   bool *has_waited);

#endif
