// SPDX-License-Identifier: Apache-2.0
#include "pool_account.h"

#include "sys.h"

/* A pool's account is one word, so that no thread ever sees or changes a part of it: in the low
 * bits the units that are charged, above them a version that grows with every change.
 *
 * `worst`, what calls under way have charged, grows before the word does and falls when the call is
 * over. Whoever has read the word before it and the driver's number after it knows of every call
 * that the word knows of; one that comes later has changed the word, and then nothing is written.
 */
#define UNIT (UINT64_C(2) << 20)
#define CHARGED_BITS 22
#define CHARGED_MASK ((UINT64_C(1) << CHARGED_BITS) - 1)

/* A thread that loses to another one this often leaves it to that one. */
#define SETTLE_TRIES 64

/* A call under way is charged for more than it takes, and one that does not fit for that reason
 * waits. None of them waits for the card. */
#define CROWD_WAIT_NS 100000
#define CROWD_WAITS 200

static uint64_t round_up(uint64_t bytes, uint64_t step)
{
	return (bytes + step - 1) / step * step;
}

static uint64_t charged_of(uint64_t word)
{
	return (word & CHARGED_MASK) * UNIT;
}

static uint64_t next_word(uint64_t word, uint64_t charged)
{
	return ((word >> CHARGED_BITS) + 1) << CHARGED_BITS | charged / UNIT;
}

static uint64_t load_word(const struct tenant_pool *pool)
{
	return __atomic_load_n(&pool->word, __ATOMIC_SEQ_CST);
}

static bool swap_word(struct tenant_pool *pool, uint64_t old, uint64_t new)
{
	return __atomic_compare_exchange_n(&pool->word, &old, new, false, __ATOMIC_SEQ_CST,
					   __ATOMIC_SEQ_CST);
}

void pool_account_start(struct tenant_pool *pool)
{
	pool->worst = 0;
	pool->wanted = 0;
	pool->past = 0;
	pool->tight = 0;
	pool->undone = 0;
	__atomic_store_n(&pool->word, next_word(load_word(pool), 0), __ATOMIC_SEQ_CST);
}

bool pool_read_reserved(const struct tenant_pool *pool, uint64_t *bytes)
{
	int status = pool->is_graph
			     ? driver.cuDeviceGetGraphMemAttribute(
				       pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes)
			     : driver.cuMemPoolGetAttribute(
				       pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes);

	if (status != CUDA_SUCCESS || *bytes > POOL_MOST_BYTES)
		return false;
	*bytes = round_up(*bytes, UNIT);
	return true;
}

bool pool_read_used(const struct tenant_pool *pool, uint64_t *bytes)
{
	int status = pool->is_graph
			     ? driver.cuDeviceGetGraphMemAttribute(
				       pool->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, bytes)
			     : driver.cuMemPoolGetAttribute(
				       pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, bytes);

	return status == CUDA_SUCCESS;
}

void pools_giving_begin(struct tenant *tenant)
{
	__atomic_add_fetch(&tenant->giving, 1, __ATOMIC_SEQ_CST);
}

void pools_giving_end(struct tenant *tenant)
{
	__atomic_sub_fetch(&tenant->giving, 1, __ATOMIC_SEQ_CST);
}

/* What the driver has taken and must not have is asked for and not granted: it counts against
 * whatever anybody else asks for, and is not held. */
static void count_taken(struct tenant *tenant, struct tenant_pool *pool, uint64_t bytes)
{
	if (quota_reserve(&tenant->quota, pool->card, bytes))
		return;
	region_ask(&tenant->region, pool->card, bytes);
	__atomic_add_fetch(&pool->past, bytes, __ATOMIC_SEQ_CST);
}

static void uncount(struct tenant *tenant, struct tenant_pool *pool, uint64_t bytes)
{
	uint64_t past = __atomic_load_n(&pool->past, __ATOMIC_SEQ_CST);
	uint64_t part;

	do
		part = bytes < past ? bytes : past;
	while (!__atomic_compare_exchange_n(&pool->past, &past, past - part, true, __ATOMIC_SEQ_CST,
					    __ATOMIC_SEQ_CST));
	if (part != 0)
		region_withdraw(&tenant->region, pool->card, part);
	if (bytes != part)
		quota_release(&tenant->quota, pool->card, bytes - part);
}

void pool_settle(struct tenant *tenant, struct tenant_pool *pool)
{
	for (int tries = 0; tries < SETTLE_TRIES; tries++) {
		uint64_t word = load_word(pool);
		uint64_t charged = charged_of(word);
		uint64_t worst = __atomic_load_n(&pool->worst, __ATOMIC_SEQ_CST);
		uint64_t reserved;

		if (!pool_read_reserved(pool, &reserved))
			return;
		if (reserved > charged) { /* past us, or by more than was foreseen */
			if (load_word(pool) != word)
				continue; /* by a call that has charged it */
			count_taken(tenant, pool, reserved - charged);
			if (swap_word(pool, word, next_word(word, reserved)))
				return;
			uncount(tenant, pool, reserved - charged);
			continue;
		}
		/* Asked after the number: what it no longer shows the card has, if nobody is
		 * giving. Whoever is settles when it is done. */
		if (reserved + worst >= charged ||
		    __atomic_load_n(&tenant->giving, __ATOMIC_SEQ_CST) != 0)
			return;
		if (swap_word(pool, word, next_word(word, reserved + worst))) {
			uncount(tenant, pool, charged - reserved - worst);
			return;
		}
	}
}

void pool_account_end(struct tenant *tenant, struct tenant_pool *pool, uint64_t left_bytes)
{
	uint64_t word;

	do
		word = load_word(pool);
	while (!swap_word(pool, word, next_word(word, 0)));
	if (left_bytes < charged_of(word))
		uncount(tenant, pool, charged_of(word) - left_bytes);
}

/* The memory is granted. */
static bool add_charge(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call,
		       uint64_t growth)
{
	uint64_t word;

	__atomic_add_fetch(&pool->worst, growth, __ATOMIC_SEQ_CST);
	do {
		word = load_word(pool);
		if (charged_of(word) + growth > POOL_MOST_BYTES) {
			__atomic_sub_fetch(&pool->worst, growth, __ATOMIC_SEQ_CST);
			quota_release(&tenant->quota, pool->card, growth);
			return false;
		}
	} while (!swap_word(pool, word, next_word(word, charged_of(word) + growth)));
	call->growth = growth;
	return true;
}

/* Graphs use what their pool has free, whole and at once: only what it lacks is new. */
static bool graph_growth(const struct tenant_pool *pool, uint64_t *growth)
{
	uint64_t wanted = __atomic_load_n(&pool->wanted, __ATOMIC_SEQ_CST);
	uint64_t reserved;
	uint64_t used;

	if (!pool_read_used(pool, &used) || !pool_read_reserved(pool, &reserved) ||
	    __builtin_add_overflow(used, wanted, &wanted))
		return false;
	*growth = wanted > reserved ? round_up(wanted - reserved, POOL_STEP) : 0;
	return true;
}

static bool charge_once(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call)
{
	uint64_t growth = round_up(call->bytes, POOL_STEP);

	if (pool->is_graph && !graph_growth(pool, &growth))
		return false;
	return growth == 0 ||
	       (growth <= POOL_MOST_BYTES && quota_try(&tenant->quota, pool->card, growth) &&
		add_charge(tenant, pool, call, growth));
}

bool pool_is_past(const struct tenant_pool *pool)
{
	return __atomic_load_n(&pool->past, __ATOMIC_SEQ_CST) != 0;
}

bool pool_is_crowded(const struct tenant_pool *pool)
{
	return __atomic_load_n(&pool->worst, __ATOMIC_SEQ_CST) != 0;
}

static bool charge(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call)
{
	for (int waits = 0; !charge_once(tenant, pool, call); waits++) {
		if (waits == CROWD_WAITS || !pool_is_crowded(pool))
			return false;
		sys_sleep_ns(CROWD_WAIT_NS);
	}
	return true;
}

bool pool_call_begin(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call,
		     uint64_t bytes)
{
	if (bytes > POOL_MOST_BYTES)
		return false;
	*call = (struct pool_call){.bytes = bytes};
	if (pool->is_graph)
		__atomic_add_fetch(&pool->wanted, bytes, __ATOMIC_SEQ_CST);
	if (charge(tenant, pool, call))
		return true;
	if (pool->is_graph)
		__atomic_sub_fetch(&pool->wanted, bytes, __ATOMIC_SEQ_CST);
	return false;
}

static bool charge_less(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call,
			uint64_t less_bytes)
{
	uint64_t most = round_up(call->bytes, POOL_STEP);
	uint64_t used;
	uint64_t reserved;

	if (!pool_read_used(pool, &used) || !pool_read_reserved(pool, &reserved))
		return false;

	/* The driver goes on to count as used what cuMemFree has given back. */
	uint64_t undone = __atomic_load_n(&pool->undone, __ATOMIC_SEQ_CST);

	used = used > undone ? used - undone : 0;
	if (used > reserved)
		used = reserved;

	uint64_t wanted = used + call->bytes;
	uint64_t least = wanted > reserved ? round_up(wanted - reserved, POOL_STEP) : 0;
	uint64_t growth = most > less_bytes ? most - less_bytes : 0;

	/* An empty pool is all in one piece. */
	if (growth < least || used == 0)
		growth = least;
	return growth == 0 ||
	       (growth <= POOL_MOST_BYTES && quota_reserve(&tenant->quota, pool->card, growth) &&
		add_charge(tenant, pool, call, growth));
}

static bool take_turn(struct tenant_pool *pool)
{
	for (int waits = 0; __atomic_exchange_n(&pool->tight, 1, __ATOMIC_SEQ_CST) != 0; waits++) {
		if (waits == CROWD_WAITS)
			return false;
		sys_sleep_ns(CROWD_WAIT_NS);
	}
	return true;
}

bool pool_call_begin_tight(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call,
			   uint64_t bytes, uint64_t less_bytes)
{
	if (bytes > POOL_MOST_BYTES || pool->is_graph || !take_turn(pool))
		return false;
	*call = (struct pool_call){.bytes = bytes, .is_tight = true};
	if (charge_less(tenant, pool, call, less_bytes))
		return true;
	__atomic_store_n(&pool->tight, 0, __ATOMIC_SEQ_CST);
	return false;
}

bool pool_call_end(struct tenant *tenant, struct tenant_pool *pool, const struct pool_call *call)
{
	if (pool->is_graph)
		__atomic_sub_fetch(&pool->wanted, call->bytes, __ATOMIC_SEQ_CST);
	__atomic_sub_fetch(&pool->worst, call->growth, __ATOMIC_SEQ_CST);
	pool_settle(tenant, pool);
	return !pool_is_past(pool);
}

void pool_turn_end(struct tenant_pool *pool, const struct pool_call *call)
{
	if (call->is_tight)
		__atomic_store_n(&pool->tight, 0, __ATOMIC_SEQ_CST);
}
