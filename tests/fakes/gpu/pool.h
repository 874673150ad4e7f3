/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pools: what stream-ordered allocations come out of.
 */
#ifndef FAKE_GPU_POOL_H
#define FAKE_GPU_POOL_H

#include "driver.h"

struct region;

/* All of these: caller holds the driver lock. */

/* Return a region to its pool. */
void pool_free(struct region *region);

/* As cuMemFree does: the card has it back, and the pool's count of what is used keeps it (seen on
 * an H100, driver 580). */
void pool_free_at_once(struct region *region);

/* Give back what the pools of a context's device keep beyond their thresholds, as every
 * synchronisation does. */
void pool_trim_idle(const struct context *context);

/* The end of a primary context empties its device's pools. */
void pool_forget_context(const struct context *context);

#endif
