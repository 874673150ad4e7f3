/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pools: what stream-ordered allocations come out of.
 */
#ifndef FAKE_GPU_POOL_H
#define FAKE_GPU_POOL_H

#include "driver.h"

struct region;

/* Return a region to its pool. Caller holds the driver lock. */
void pool_free(struct region *region);

/* Give back what pools keep beyond their threshold, as every synchronisation does. Caller holds the
 * driver lock. */
void pool_trim_idle(struct context *context);

#endif
