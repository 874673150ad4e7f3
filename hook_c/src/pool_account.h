// SPDX-License-Identifier: Apache-2.0
/* What the account holds for a pool of the driver, and what a call may take of it.
 *
 * The card loses what a pool reserves, not what is allocated from it. Three things are true of
 * every pool and every moment: what the card has lost is in the account; the account is granted
 * before the driver is asked; and it falls only when the card has the memory back. */
#ifndef VGPU_POOL_ACCOUNT_H
#define VGPU_POOL_ACCOUNT_H

#include "hook.h"

#define POOL_STEP (UINT64_C(32) << 20) /* by which a pool grows; measured on an H100 */
#define POOL_MOST_BYTES (((UINT64_C(1) << 22) - 1) * (UINT64_C(2) << 20))

/* What a pool counts with from the beginning. */
void pool_account_start(struct tenant_pool *pool);

/* What is free in a pool may be of no use to a call: another stream has not come to the free. */
enum pool_reliance {
	POOL_RELY_ON_WORD,    /* what is free is free for this call, whenever it was freed */
	POOL_RELY_ON_NUMBERS, /* what the driver says is free now, if the worst does not fit */
	POOL_RELY_ON_NOTHING, /* only the worst */
};

/* Makes room for a call that takes at most `bytes` of the pool. False leaves nothing charged; else
 * pool_call_end must follow the call of the driver. */
bool pool_call_begin(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call,
		     uint64_t bytes, enum pool_reliance reliance);

/* False: the pool has more than could be granted. */
bool pool_call_end(struct tenant *tenant, struct tenant_pool *pool, const struct pool_call *call);

/* Around a call of the driver that takes memory away from pools: their numbers fall before the card
 * has it. It must be one that does not wait for the card. begin waits for the calls that rely on
 * what is free; false: one of them does not come to an end. */
bool pools_giving_begin(struct tenant *tenant);
void pools_giving_end(struct tenant *tenant);

/* Brings the account to what the driver says now. A thread that comes in between settles itself, or
 * leaves it to the next call. */
void pool_settle(struct tenant *tenant, struct tenant_pool *pool);

/* Whether it may say anything new. */
bool pool_is_settled(const struct tenant_pool *pool);

/* The pool is no more, and so much of it is left at the card; UINT64_MAX: all. */
void pool_account_end(struct tenant *tenant, struct tenant_pool *pool, uint64_t left_bytes);

/* The driver's numbers. */
bool pool_read_reserved(const struct tenant_pool *pool, uint64_t *bytes);
bool pool_read_used(const struct tenant_pool *pool, uint64_t *bytes);

#endif
