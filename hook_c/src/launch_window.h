// SPDX-License-Identifier: Apache-2.0
/* Several cards in one container: they are launched on in the same windows of time, since their
 * kernels may wait for each other. A collective whose peer has to wait for credit would keep its
 * card busy, be charged for that, and have to wait when its peer may go. */
#ifndef VGPU_LAUNCH_WINDOW_H
#define VGPU_LAUNCH_WINDOW_H

#include "launch_card.h"

/* For how long a launch has to wait for a window; 0: it may go. */
uint64_t window_wait(const struct launch_card *card, const struct tenant *tenant,
		     uint64_t pending_ns, bool has_end, uint64_t start_ns, uint64_t now_ns);

/* After each launch, under the card's lock. */
void window_note_launch(const struct launch_card *card);

/* A futex word: it changes when a window is opened. */
const uint32_t *window_word(const struct tenant *tenant);

/* Whether the card's peers were launched on more often, so that one of them may wait for what comes
 * next on this one. */
bool window_is_behind(const struct launch_card *card, const struct tenant *tenant);

#endif
