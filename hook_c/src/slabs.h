// SPDX-License-Identifier: Apache-2.0
/* What memory with an address takes of its card.
 *
 * Above 1 MiB: whole steps of 2 MiB. Up to 1 MiB the driver cuts pieces from slabs of 2 MiB, each
 * of one context, and a slab goes back when it holds none (measured on an H200:
 * bench/gpu/slabs.py). Their sum says little of the slabs: of 700 KiB two go into one, and 4 KiB
 * hold one that was full. So a slab is charged whole, once, while a piece of it lives. Which one a
 * piece is of is known when the driver has answered: a slab is reserved before, and given back if
 * it was charged already. Who cannot reserve one may still find room in those that are charged;
 * what turns out not to have, goes back before the program sees it. */
#ifndef VGPU_SLABS_H
#define VGPU_SLABS_H

#include "tenant.h"

/* Before the driver is asked for `memory->bytes` of `memory->card`; false: it is to be refused.
 * Sets `memory->refs`: of small memory the slabs that are reserved for it. */
bool slabs_reserve(struct tenant *tenant, struct table_entry *memory);

/* The driver has refused. */
void slabs_unreserve(struct tenant *tenant, const struct table_entry *memory);

/* The driver has given `memory->handle`. False: it has to go back to the driver; nothing is left
 * reserved. */
bool slabs_hold(struct tenant *tenant, struct table_entry *memory);

/* After the driver has freed it. */
void slabs_release(struct tenant *tenant, uint32_t card, uint64_t address, uint64_t bytes);

#endif
