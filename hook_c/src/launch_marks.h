// SPDX-License-Identifier: Apache-2.0
/* The marks that measure what was launched: timing events behind the last launch in every stream
 * that the open interval has launches in. Nothing is recorded in a stream that is being captured.
 */
#ifndef VGPU_LAUNCH_MARKS_H
#define VGPU_LAUNCH_MARKS_H

#include "launch_card.h"

/* Before the first launch of a context: the event from which its others are measured. */
void marks_begin_line(struct launch_card *card, uint64_t context, void *stream);

/* Ends the open interval. `start`: also one without launches, before a launch in this stream. */
void marks_set(struct launch_card *card, void *start, uint64_t context);

/* Takes account of the marks that the card has come to. */
void marks_harvest(struct launch_card *card);

/* Whether there are marks that the card has not come to, or that were not taken account of. */
static inline bool marks_are_left(const struct launch_card *card)
{
	return __atomic_load_n(&card->mark[card->tail % MARKS].state, __ATOMIC_RELAXED) !=
	       MARK_FREE;
}

/* The same on all cards: who waits for one is the one who could tell how far the others are. */
void marks_harvest_all(const struct tenant *tenant);

/* Asks the card whether it has anything left of the open interval. Under the lock, which it lets go
 * of meanwhile. */
bool marks_is_busy(struct launch_card *card);

/* Under the lock: whether it is time for a mark on an idle card, which there is now: it keeps the
 * card's clock and ours together. */
bool marks_have_drifted(const struct launch_card *card);

#endif
