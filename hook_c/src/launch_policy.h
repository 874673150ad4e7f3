// SPDX-License-Identifier: Apache-2.0
/* What the agent, or a developer's environment, has to say about a card. */
#ifndef VGPU_LAUNCH_POLICY_H
#define VGPU_LAUNCH_POLICY_H

#include "tenant.h"

struct policy {
	uint32_t percent;
	bool is_gated;
	bool is_settled; /* nothing changes but with the limits' sequence word */
	uint64_t horizon_ns;
	uint64_t kept_ns;  /* beyond it, of time for which others went first for long */
	uint64_t batch_ns; /* of credit that who has none waits for */
};

/* What holds for the card now. Of numbers that are changed while they are read each is an old or a
 * new one, and the next look is a millisecond of work away. */
struct policy policy_of(const struct tenant *tenant, unsigned int index, uint64_t now_ns);

/* Whether the container has several cards. A developer's limit is one for each card that there is,
 * of which a program may use a single one. */
bool policy_is_joint(const struct tenant *tenant);

/* Whether no card of this process has a limit; then launches ask no more until the file changes. */
bool policy_try_to_be_free(struct tenant *tenant, uint64_t now_ns);

#endif
