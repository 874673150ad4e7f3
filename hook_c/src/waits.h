// SPDX-License-Identifier: Apache-2.0
/* Calls of the driver that wait for the card, and whether those of a moment have all ended.
 *
 * What a program has freed in the order of a stream, one of the waits behind the free gives back,
 * and another that ends earlier does not tell that it is done. So whoever wants to know lets all of
 * that moment end. Those that begin later do not count: there may always be some. */
#ifndef VGPU_WAITS_H
#define VGPU_WAITS_H

#include <stdbool.h>
#include <stdint.h>

/* All 0 to begin with. Waits are counted in one of two numbers, so that the other one falls to 0.
 */
struct waits {
	uint32_t number; /* where the next one is counted */
	uint32_t under_way[2];
};

/* From all 0 on: of which numbers none is left that was under way. */
struct waits_moment {
	bool is_over[2];
};

/* Around a wait: the number where it is counted. */
uint32_t waits_enter(struct waits *waits);
void waits_leave(struct waits *waits, uint32_t number);

/* Whether no wait is left that was under way at the moment, which is that of the first call. Never
 * waits itself. */
bool waits_have_ended(struct waits *waits, struct waits_moment *moment);

#endif
