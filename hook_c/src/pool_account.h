// SPDX-License-Identifier: Apache-2.0
/* What the account holds for a pool of the driver, and who is at it.
 *
 * The card loses what a pool reserves, not what is allocated from it. Three things are true of
 * every pool at every moment: what the card has lost is held or asked for; the question is granted
 * before the driver is called; and what is held falls only when the card has the memory back. */
#ifndef VGPU_POOL_ACCOUNT_H
#define VGPU_POOL_ACCOUNT_H

#include "hook.h"

#define POOL_STEP                                                                                  \
	(UINT64_C(32) << 20) /* by which a pool grows; measured on an H100 and an H200             \
			      */
#define POOL_MOST_BYTES (UINT64_C(1) << 42)

/* What a pool counts with from the beginning. */
void pool_account_start(struct tenant_pool *pool);

/* Whoever has a pool pinned may ask the driver about it. False: it is no more, and not pinned. */
bool pool_pin(struct tenant_pool *pool);
void pool_unpin(struct tenant_pool *pool);

/* Whether nobody but the caller, who is, has the pool pinned. */
bool pool_is_left(const struct tenant_pool *pool);

/* Asks for the most that an allocation of the call's bytes can make the pool grow by: nothing of
 * what is free in it need be of use. Pieces are scattered, and what another stream has freed is not
 * free before the card has come to the free. False leaves nothing asked for; else the call of the
 * driver follows, and then pool_call_leave or pool_call_end. */
bool pool_call_begin(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call);

/* The same where there is no room for that: so much less may be asked for, but not less than
 * follows from the driver's numbers. pool_call_end finds out. One such call at a time: until
 * pool_turn_end, which must follow the end of every call. */
bool pool_call_begin_tight(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call,
			   uint64_t less_bytes);
void pool_turn_end(struct tenant_pool *pool, const struct pool_call *call);

/* Unpins the pool of a call that has changed nothing, as nearly all. False: it has, and
 * pool_call_end must follow. */
bool pool_call_leave(struct tenant *tenant, struct tenant_pool *pool, const struct pool_call *call);

/* The pool stays pinned. False: it has more than could be granted. */
bool pool_call_end(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call);

/* Whether the pool has more than could be granted. */
bool pool_is_past(const struct tenant_pool *pool);

/* Whether calls are under way, which ask for more than they will take. */
bool pool_is_crowded(const struct tenant_pool *pool);

/* Around a call of the driver that takes memory away from pools: their numbers fall before the card
 * has it. It must be one that does not wait for the card. */
void pools_giving_begin(struct tenant *tenant);
void pools_giving_end(struct tenant *tenant);

/* Brings the account to what the driver says now. The pool is pinned, and this thread asks for
 * nothing. */
void pool_settle(struct tenant *tenant, struct tenant_pool *pool);

/* The pool is no more, and so much of it is left at the card; UINT64_MAX: all. */
void pool_account_end(struct tenant *tenant, struct tenant_pool *pool, uint64_t left_bytes);

/* The driver's numbers. */
bool pool_read_reserved(const struct tenant_pool *pool, uint64_t *bytes);
bool pool_read_used(const struct tenant_pool *pool, uint64_t *bytes);

#endif
