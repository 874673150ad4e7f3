// SPDX-License-Identifier: Apache-2.0
#include "pool_account.h"

#include "sys.h"

/* A pool's account is one word, so that no thread ever sees or changes a part of it:
 *
 *   bits  0-30  spare     4 KiB units that calls may still take with what is charged
 *   bits 31-52  charged   2 MiB units in the account
 *   bit  53     doubtful  more is charged than the pool may have: look again after the next call
 *   bits 54-63  version   of the last look at the driver's numbers
 *
 * `relying` and `worst` grow before a call takes from the word and fall when the call is over.
 * Whoever has read the word before them and the driver's numbers after them knows of every call
 * that the word knows of; one that comes later has changed the word, and then nothing is written.
 * What is freed is found with the next look, so `spare` is never too high. */
#define SPARE_UNIT UINT64_C(4096)
#define SPARE_BITS 31
#define CHARGED_UNIT (UINT64_C(2) << 20)
#define CHARGED_BITS 22
#define DOUBTFUL (UINT64_C(1) << (SPARE_BITS + CHARGED_BITS))
#define VERSION_SHIFT (SPARE_BITS + CHARGED_BITS + 1)
#define MASK(bits) ((UINT64_C(1) << (bits)) - 1)

/* A call is under way in one of two ways. It *relies* on what is free in the pool, and has charged
 * the growth that follows from the driver's numbers: then nothing may be taken away from the pool
 * meanwhile. Or it has charged the *worst* that it can make the pool grow by, and relies on
 * nothing. `relying` counts bytes, which are whole units, and in the bits below them the calls. */
#define RELYING_CALLS (SPARE_UNIT - 1)

/* While others are under way, what the driver has counted already is counted twice; while memory is
 * given back, what the pool has lost is still charged. A call that does not fit for such a reason
 * waits until it is known. No such state lasts: neither kind of call waits for the card. */
#define CROWD_WAIT_NS 100000
#define CROWD_WAITS 200
#define GIVING_WAITS 10000 /* 1 s */

/* Whoever relies on a pool is inside one allocation. */
#define RELYING_WAIT_NS 20000
#define RELYING_WAITS 1000 /* 20 ms */

static uint64_t round_up(uint64_t bytes, uint64_t step)
{
	return (bytes + step - 1) / step * step;
}

static uint64_t spare_of(uint64_t word)
{
	return (word & MASK(SPARE_BITS)) * SPARE_UNIT;
}

static uint64_t charged_of(uint64_t word)
{
	return (word >> SPARE_BITS & MASK(CHARGED_BITS)) * CHARGED_UNIT;
}

/* What follows `word`. */
static uint64_t next_word(uint64_t word, uint64_t charged, uint64_t spare, bool is_doubtful)
{
	return ((word >> VERSION_SHIFT) + 1) << VERSION_SHIFT | (is_doubtful ? DOUBTFUL : 0) |
	       charged / CHARGED_UNIT << SPARE_BITS | spare / SPARE_UNIT;
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
	pool->relying = 0;
	pool->worst = 0;
	pool->unseen = 0;
	pool->past = 0;
	__atomic_store_n(&pool->word, next_word(load_word(pool), 0, 0, false), __ATOMIC_SEQ_CST);
}

/* The driver's numbers, and what is under way; in the order that the word's rule wants. */
struct look {
	uint64_t reserved;
	uint64_t used;
	uint64_t relying;
	uint64_t worst;
};

bool pool_read_reserved(const struct tenant_pool *pool, uint64_t *bytes)
{
	int status = pool->is_graph
			     ? driver.cuDeviceGetGraphMemAttribute(
				       pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes)
			     : driver.cuMemPoolGetAttribute(
				       pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes);

	if (status != CUDA_SUCCESS || *bytes > POOL_MOST_BYTES)
		return false;
	*bytes = round_up(*bytes, CHARGED_UNIT);
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

/* What is reserved last, and so never less than what `used` needs. The driver goes on to count as
 * used what cuMemFree has given back (seen on an H100, driver 580): it is not more than it has. */
static bool look_at(const struct tenant_pool *pool, struct look *look)
{
	look->relying = __atomic_load_n(&pool->relying, __ATOMIC_SEQ_CST) & ~RELYING_CALLS;
	look->worst = __atomic_load_n(&pool->worst, __ATOMIC_SEQ_CST);
	if (!pool_read_used(pool, &look->used) || !pool_read_reserved(pool, &look->reserved))
		return false;
	if (look->used > look->reserved)
		look->used = look->reserved;
	return true;
}

/* What the pool will have reserved at most when all that is under way is over. */
static uint64_t most_of(const struct look *look)
{
	uint64_t wanted = look->used + look->relying;
	uint64_t most = look->reserved;

	if (wanted > POOL_MOST_BYTES || look->worst > POOL_MOST_BYTES)
		return UINT64_MAX;
	if (wanted > most)
		most += round_up(wanted - most, POOL_STEP);
	return most + look->worst;
}

/* What calls may still take of so much that is charged: none of it twice. */
static uint64_t spare_in(const struct look *look, uint64_t charged)
{
	uint64_t taken = look->used + look->relying + look->worst;

	return charged > taken ? charged - taken : 0;
}

static bool is_giving(const struct tenant *tenant)
{
	return __atomic_load_n(&tenant->giving, __ATOMIC_SEQ_CST) != 0;
}

/* Of a call that comes to rely on a pool and one that begins to give, at least one sees the other:
 * both count themselves first. */
bool pools_giving_begin(struct tenant *tenant)
{
	uint32_t count = __atomic_load_n(&tenant->pool_count, __ATOMIC_ACQUIRE);
	int waits = 0;

	__atomic_add_fetch(&tenant->giving, 1, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < count && waits < RELYING_WAITS;) {
		if ((__atomic_load_n(&tenant->pool[i].relying, __ATOMIC_SEQ_CST) & RELYING_CALLS) ==
		    0) {
			i++;
			continue;
		}
		sys_sleep_ns(RELYING_WAIT_NS);
		waits++;
	}
	return waits < RELYING_WAITS;
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
	__atomic_add_fetch(&pool->past, bytes, __ATOMIC_RELAXED);
}

static void uncount(struct tenant *tenant, struct tenant_pool *pool, uint64_t bytes)
{
	uint64_t past = __atomic_load_n(&pool->past, __ATOMIC_RELAXED);
	uint64_t part;

	do
		part = bytes < past ? bytes : past;
	while (!__atomic_compare_exchange_n(&pool->past, &past, past - part, true, __ATOMIC_RELAXED,
					    __ATOMIC_RELAXED));
	if (part != 0)
		region_withdraw(&tenant->region, pool->card, part);
	if (bytes != part)
		quota_release(&tenant->quota, pool->card, bytes - part);
}

void pool_settle(struct tenant *tenant, struct tenant_pool *pool)
{
	if (__atomic_load_n(&pool->unseen, __ATOMIC_RELAXED) != 0)
		__atomic_store_n(&pool->unseen, 0, __ATOMIC_RELAXED);
	for (int tries = 0; tries < 8; tries++) {
		uint64_t word = load_word(pool);
		uint64_t charged = charged_of(word);
		struct look look = {0};

		if ((word & DOUBTFUL) == 0) {
			/* Nearly always. */
			if (!pool_read_reserved(pool, &look.reserved) || look.reserved == charged)
				return;
		}
		if (!look_at(pool, &look))
			return;

		/* Asked after the numbers: what they no longer show the card has, if nobody is
		 * giving. Whoever is settles when it is done. */
		bool is_back = !is_giving(tenant);
		uint64_t most = most_of(&look);
		uint64_t now = most < charged ? most : charged;

		if (look.reserved > now) { /* past us, or by more than was foreseen */
			if (load_word(pool) != word)
				continue; /* by a call that has charged it */
			now = look.reserved;
		}
		if (now < charged && !is_back)
			now = charged;

		bool is_doubtful =
			look.relying != 0 || look.worst != 0 || (most < charged && !is_back);
		/* What is on its way back is charged, and nobody may take it. */
		uint64_t spare = spare_in(&look, is_back || now < most ? now : most);

		if (now > charged)
			count_taken(tenant, pool, now - charged);
		if (swap_word(pool, word, next_word(word, now, spare, is_doubtful))) {
			if (now < charged)
				uncount(tenant, pool, charged - now);
			return;
		}
		if (now > charged)
			uncount(tenant, pool, now - charged);
	}
}

bool pool_is_settled(const struct tenant_pool *pool)
{
	return (load_word(pool) & DOUBTFUL) == 0 &&
	       __atomic_load_n(&pool->unseen, __ATOMIC_RELAXED) == 0;
}

void pool_account_end(struct tenant *tenant, struct tenant_pool *pool, uint64_t left_bytes)
{
	uint64_t word;

	do
		word = load_word(pool);
	while (!swap_word(pool, word, next_word(word, 0, 0, false)));
	if (left_bytes < charged_of(word))
		uncount(tenant, pool, charged_of(word) - left_bytes);
}

enum growth {
	GROWTH_NONE, /* or it is charged */
	GROWTH_REFUSED,
	GROWTH_CROWDED, /* refused, and perhaps only because of what others are about */
};

/* Charges the worst: nothing of what the pool has is of any use to the call. */
static bool charge_worst(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call)
{
	uint64_t worst = round_up(call->bytes, POOL_STEP);
	uint64_t word;

	if (worst > POOL_MOST_BYTES || !quota_try(&tenant->quota, pool->card, worst))
		return false;
	__atomic_add_fetch(&pool->worst, worst, __ATOMIC_SEQ_CST);
	do {
		word = load_word(pool);
		if (charged_of(word) + worst > POOL_MOST_BYTES) {
			__atomic_sub_fetch(&pool->worst, worst, __ATOMIC_SEQ_CST);
			quota_release(&tenant->quota, pool->card, worst);
			return false;
		}
	} while (!swap_word(pool, word,
			    next_word(word, charged_of(word) + worst, spare_of(word), true)));
	call->worst = worst;
	return true;
}

static void rely(struct tenant_pool *pool, const struct pool_call *call)
{
	__atomic_add_fetch(&pool->relying, call->bytes + 1, __ATOMIC_SEQ_CST);
}

static void rely_no_more(struct tenant_pool *pool, const struct pool_call *call)
{
	__atomic_sub_fetch(&pool->relying, call->bytes + 1, __ATOMIC_SEQ_CST);
}

/* For a call that relies on the pool. Not `may_grow`: only if that takes no more than is charged.
 */
static enum growth charge_foreseen(struct tenant *tenant, struct tenant_pool *pool,
				   const struct pool_call *call, enum pool_reliance reliance,
				   bool may_grow)
{
	for (;;) {
		uint64_t word = load_word(pool);
		uint64_t charged = charged_of(word);
		struct look look;

		if (reliance == POOL_RELY_ON_WORD && spare_of(word) >= call->bytes) {
			if (swap_word(pool, word, word - call->bytes / SPARE_UNIT))
				return GROWTH_NONE;
			continue;
		}
		if (!look_at(pool, &look))
			return GROWTH_REFUSED;

		uint64_t most = most_of(&look);
		uint64_t more = most > charged ? most - charged : 0;

		if (more != 0 && !may_grow)
			return GROWTH_CROWDED;
		if (more != 0 &&
		    (most > POOL_MOST_BYTES || !quota_reserve(&tenant->quota, pool->card, more)))
			return look.relying > call->bytes || look.worst != 0 ? GROWTH_CROWDED
									     : GROWTH_REFUSED;

		/* Not lowered here. What the driver does not take of it is given back at the end.
		 */
		uint64_t now = charged + more;
		bool is_doubtful = more != 0 || reliance != POOL_RELY_ON_WORD ||
				   look.relying > call->bytes || look.worst != 0 ||
				   (word & DOUBTFUL) != 0;

		if (swap_word(pool, word, next_word(word, now, spare_in(&look, now), is_doubtful)))
			return GROWTH_NONE;
		if (more != 0)
			quota_release(&tenant->quota, pool->card, more);
	}
}

static enum growth charge_relying(struct tenant *tenant, struct tenant_pool *pool,
				  const struct pool_call *call, enum pool_reliance reliance,
				  bool may_grow)
{
	enum growth growth = GROWTH_CROWDED;

	rely(pool, call);
	if (!is_giving(tenant))
		growth = charge_foreseen(tenant, pool, call, reliance, may_grow);
	if (growth != GROWTH_NONE)
		rely_no_more(pool, call);
	return growth;
}

/* What is charged and free is the first choice; then the worst, which cannot be wrong; and when
 * that does not fit, what follows from the driver's numbers. */
static enum growth charge(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call,
			  enum pool_reliance reliance)
{
	enum growth growth = GROWTH_CROWDED;

	if (reliance == POOL_RELY_ON_WORD || pool->is_graph)
		growth = charge_relying(tenant, pool, call, reliance, false);
	if (growth != GROWTH_CROWDED || charge_worst(tenant, pool, call))
		return growth == GROWTH_CROWDED ? GROWTH_NONE : growth;
	if (reliance != POOL_RELY_ON_NOTHING)
		return charge_relying(tenant, pool, call, reliance, true);
	return is_giving(tenant) ? GROWTH_CROWDED : GROWTH_REFUSED;
}

bool pool_call_begin(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call,
		     uint64_t bytes, enum pool_reliance reliance)
{
	enum growth growth;
	int crowded = 0;
	int given = 0;

	if (bytes > POOL_MOST_BYTES)
		return false;
	*call = (struct pool_call){.bytes = round_up(bytes, SPARE_UNIT)};
	while ((growth = charge(tenant, pool, call, reliance)) == GROWTH_CROWDED) {
		int *waits = is_giving(tenant) ? &given : &crowded;

		if (++*waits > (waits == &given ? GIVING_WAITS : CROWD_WAITS))
			return false;
		sys_sleep_ns(CROWD_WAIT_NS);
	}
	return growth == GROWTH_NONE;
}

/* Asking the driver costs as much as the rest of the hook, so after small calls it is asked only
 * once in a while: a pool that grows by more than was foreseen is seen within a step. */
bool pool_call_end(struct tenant *tenant, struct tenant_pool *pool, const struct pool_call *call)
{
	uint64_t unseen = __atomic_load_n(&pool->unseen, __ATOMIC_RELAXED) + call->bytes;

	if (call->worst != 0)
		__atomic_sub_fetch(&pool->worst, call->worst, __ATOMIC_SEQ_CST);
	else
		rely_no_more(pool, call);
	if (unseen < POOL_STEP && (load_word(pool) & DOUBTFUL) == 0) {
		__atomic_store_n(&pool->unseen, unseen, __ATOMIC_RELAXED);
		return true;
	}
	pool_settle(tenant, pool);
	return __atomic_load_n(&pool->past, __ATOMIC_RELAXED) == 0;
}
