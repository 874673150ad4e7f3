// SPDX-License-Identifier: Apache-2.0
#include "pool_account.h"

#include "graph_use.h"
#include "launch_streams.h"
#include "sys.h"

/* What the account holds for a pool is one word, so that no thread ever sees or changes a part of
 * it: in the low bits the units, above them a version that grows with every change.
 *
 * So is who is at the pool: in the low bits how many threads, above them by how many steps they may
 * make it grow, and above those a version that grows whenever somebody comes. By so much the pool
 * may have more than is held: that is asked for, and whoever has asked for it makes it held, or
 * takes the question back, when its call is over. Somebody else who looks at the pool meanwhile
 * cannot know whose growth it sees; so whoever was not alone at the pool changes the word when it
 * is over, and looks once more when it makes the pool grow no more: the last one has seen
 * everything. */
#define UNIT (UINT64_C(2) << 20)
#define HELD_BITS 24
#define HELD_MASK ((UINT64_C(1) << HELD_BITS) - 1)

#define AT_PIN UINT64_C(1)
#define AT_STEP (UINT64_C(1) << 16)
#define AT_VERSION (UINT64_C(1) << 36)
#define AT_PINS (AT_STEP - 1)

/* A thread that loses to others this often leaves it to them to lower the word, and raises it all
 * the same: what a pool has too much is then counted twice at worst, until somebody looks again. */
#define SETTLE_TRIES 64

/* A call under way asks for more than it takes, and one that does not fit for that reason waits.
 * None of them waits for the card. */
#define CROWD_WAIT_NS 100000
#define CROWD_WAITS 200

static uint64_t held_of(uint64_t word)
{
	return (word & HELD_MASK) * UNIT;
}

static uint64_t next_word(uint64_t word, uint64_t held)
{
	return ((word >> HELD_BITS) + 1) << HELD_BITS | held / UNIT;
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

static void add_to_word(struct tenant_pool *pool, uint64_t held)
{
	__atomic_fetch_add(&pool->word, next_word(0, held), __ATOMIC_SEQ_CST);
}

static uint64_t load_at(const struct tenant_pool *pool)
{
	return __atomic_load_n(&pool->at, __ATOMIC_SEQ_CST);
}

static uint64_t steps_of(uint64_t growth)
{
	return growth / POOL_STEP * AT_STEP;
}

static uint64_t growth_of(uint64_t at)
{
	return at % AT_VERSION / AT_STEP * POOL_STEP;
}

static bool is_live(const struct tenant_pool *pool)
{
	return __atomic_load_n(&pool->state, __ATOMIC_SEQ_CST) == TENANT_POOL_LIVE;
}

/* A pool's place is used again when its pool is destroyed and nobody is at it any more. */
void pool_unpin(struct tenant_pool *pool)
{
	uint32_t state = TENANT_POOL_ENDED;

	if ((__atomic_fetch_sub(&pool->at, AT_PIN, __ATOMIC_SEQ_CST) & AT_PINS) == AT_PIN)
		__atomic_compare_exchange_n(&pool->state, &state, TENANT_POOL_FREE, false,
					    __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

bool pool_pin(struct tenant_pool *pool)
{
	if (!is_live(pool))
		return false;
	__atomic_fetch_add(&pool->at, AT_VERSION + AT_PIN, __ATOMIC_SEQ_CST);
	if (is_live(pool))
		return true;
	pool_unpin(pool);
	return false;
}

bool pool_is_left(const struct tenant_pool *pool)
{
	return (load_at(pool) & AT_PINS) == AT_PIN;
}

void pool_account_start(struct tenant_pool *pool)
{
	__atomic_fetch_add(&pool->at, AT_PIN, __ATOMIC_SEQ_CST);
	pool->past = 0;
	pool->tight = 0;
	pool->undone = 0;
	__atomic_store_n(&pool->word, next_word(load_word(pool), 0), __ATOMIC_SEQ_CST);
}

/* Asked in the usual mode, the driver ends the captures of the process (H200, driver 580). */
static int read_attribute(const struct tenant_pool *pool, int of_graphs, int of_pool,
			  uint64_t *bytes)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	int status;

	if (pool->is_graph)
		return driver.cuDeviceGetGraphMemAttribute(pool->device, of_graphs, bytes);
	if (!is_any_captured())
		return driver.cuMemPoolGetAttribute(pool->handle, of_pool, bytes);
	exchange_capture_mode(&mode);
	status = driver.cuMemPoolGetAttribute(pool->handle, of_pool, bytes);
	exchange_capture_mode(&mode);
	return status;
}

bool pool_read_reserved(const struct tenant_pool *pool, uint64_t *bytes)
{
	int status = read_attribute(pool, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
				    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes);

	if (status != CUDA_SUCCESS || *bytes > POOL_MOST_BYTES)
		return false;
	*bytes = quota_round_up(*bytes, UNIT);
	return true;
}

bool pool_read_used(const struct tenant_pool *pool, uint64_t *bytes)
{
	return read_attribute(pool, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
			      CU_MEMPOOL_ATTR_USED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
}

void pools_giving_begin(struct tenant *tenant)
{
	__atomic_add_fetch(&tenant->giving, 1, __ATOMIC_SEQ_CST);
}

void pools_giving_end(struct tenant *tenant)
{
	__atomic_sub_fetch(&tenant->giving, 1, __ATOMIC_SEQ_CST);
}

/* Asked after the driver's number: what it no longer shows the card has, if nobody is giving.
 * Whoever is settles when it is done. */
static bool is_giving(const struct tenant *tenant)
{
	return __atomic_load_n(&tenant->giving, __ATOMIC_SEQ_CST) != 0;
}

/* Or if no launch of a graph counts on what it showed before. The last one settles. */
static bool is_counted_on(const struct tenant *tenant, const struct tenant_pool *pool)
{
	return is_giving(tenant) || graph_use_is_under_way(pool);
}

/* What the driver has taken and must not have is asked for and not granted: it counts against
 * whatever anybody else asks for, and is not held. */
static void count_taken(struct tenant *tenant, struct tenant_pool *pool, uint64_t bytes)
{
	if (quota_reserve(&tenant->quota, pool->card, bytes))
		return;
	region_ask(tenant->quota.region, pool->card, bytes);
	region_leave(tenant->quota.region, pool->card, bytes);
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
	if (part != 0) {
		region_resume(tenant->quota.region, pool->card, part);
		region_withdraw(tenant->quota.region, pool->card, part);
	}
	if (bytes != part)
		quota_release(&tenant->quota, pool->card, bytes - part);
}

void pool_settle(struct tenant *tenant, struct tenant_pool *pool)
{
	for (int tries = 1; tries <= SETTLE_TRIES; tries++) {
		uint64_t word = load_word(pool);
		uint64_t held = held_of(word);
		uint64_t reserved;

		if (!pool_read_reserved(pool, &reserved))
			return;

		/* Asked after the number: whoever has made it grow is still at the pool, or has
		 * changed the word. */
		uint64_t most = held + growth_of(load_at(pool));

		if (reserved > most) { /* past us, or by more than was foreseen */
			if (load_word(pool) != word && tries < SETTLE_TRIES)
				continue;
			count_taken(tenant, pool, reserved - most);
			if (swap_word(pool, word, next_word(word, held + reserved - most)))
				return;
			if (tries == SETTLE_TRIES) {
				add_to_word(pool, reserved - most);
				return;
			}
			uncount(tenant, pool, reserved - most);
		} else if (reserved >= held || is_counted_on(tenant, pool)) {
			return;
		} else if (swap_word(pool, word, next_word(word, reserved))) {
			uncount(tenant, pool, held - reserved);
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
	if (left_bytes < held_of(word))
		uncount(tenant, pool, held_of(word) - left_bytes);
}

/* From now on whoever looks at the pool knows that the call may make it grow. Only when that has
 * been granted: it stands for what anybody else has taken, too. */
static void count_growth(struct tenant_pool *pool, struct pool_call *call, uint64_t growth)
{
	call->growth = growth;
	if (growth != 0)
		call->at = __atomic_add_fetch(&pool->at, AT_VERSION + steps_of(growth),
					      __ATOMIC_SEQ_CST);
}

/* And now that it makes it grow no more. */
static void end_growth(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call)
{
	if (call->growth != 0)
		__atomic_fetch_sub(&pool->at, steps_of(call->growth), __ATOMIC_SEQ_CST);
	call->growth = 0;
	pool_settle(tenant, pool);
}

/* Graphs use what their pool has free, whole and at once: only what it lacks is new. */
static bool graph_growth(const struct tenant_pool *pool, const struct pool_call *call,
			 uint64_t *growth)
{
	uint64_t reserved;

	if (!pool_read_reserved(pool, &reserved))
		return false;

	uint64_t usable = reserved > call->others ? reserved - call->others : 0;

	*growth = call->bytes > usable ? quota_round_up(call->bytes - usable, POOL_STEP) : 0;
	return true;
}

static bool ask_once(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call)
{
	uint64_t growth = quota_round_up(call->bytes, POOL_STEP);

	if (pool->is_graph && !graph_growth(pool, call, &growth))
		return false;
	if (growth != 0 && !quota_try(&tenant->quota, pool->card, growth))
		return false;
	count_growth(pool, call, growth);
	return true;
}

bool pool_is_past(const struct tenant_pool *pool)
{
	return __atomic_load_n(&pool->past, __ATOMIC_SEQ_CST) != 0;
}

bool pool_is_crowded(const struct tenant_pool *pool)
{
	return growth_of(load_at(pool)) != 0;
}

static bool ask(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call)
{
	for (int waits = 0; !ask_once(tenant, pool, call); waits++) {
		if (waits == CROWD_WAITS || !pool_is_crowded(pool))
			return false;
		sys_sleep_ns(CROWD_WAIT_NS);
	}
	return true;
}

bool pool_call_begin(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call)
{
	if (call->bytes > POOL_MOST_BYTES)
		return false;
	call->is_tight = false;
	return ask(tenant, pool, call);
}

static bool ask_less(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call,
		     uint64_t less_bytes)
{
	uint64_t most = quota_round_up(call->bytes, POOL_STEP);
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
	uint64_t least = wanted > reserved ? quota_round_up(wanted - reserved, POOL_STEP) : 0;
	uint64_t growth = most > less_bytes ? most - less_bytes : 0;

	/* An empty pool is all in one piece. */
	if (growth < least || used == 0)
		growth = least;
	if (growth != 0 && !quota_ask(&tenant->quota, pool->card, growth))
		return false;
	count_growth(pool, call, growth);
	return true;
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
			   uint64_t less_bytes)
{
	if (call->bytes > POOL_MOST_BYTES || pool->is_graph || !take_turn(pool))
		return false;
	call->is_tight = true;
	if (ask_less(tenant, pool, call, less_bytes))
		return true;
	__atomic_store_n(&pool->tight, 0, __ATOMIC_SEQ_CST);
	return false;
}

bool pool_call_leave(struct tenant *tenant, struct tenant_pool *pool, const struct pool_call *call)
{
	uint64_t part = AT_PIN + steps_of(call->growth);
	uint64_t at = call->at;
	unsigned int card = pool->card; /* the place may be another's when it is unpinned */
	uint64_t reserved;

	/* Also whoever comes later, before this call is over, finds out that it was not alone. */
	if (call->is_tight || at % AT_VERSION != part || pool_is_past(pool) ||
	    !pool_read_reserved(pool, &reserved) || reserved != held_of(load_word(pool)) ||
	    is_giving(tenant) ||
	    !__atomic_compare_exchange_n(&pool->at, &at, at - part, false, __ATOMIC_SEQ_CST,
					 __ATOMIC_RELAXED))
		return false;
	quota_drop(&tenant->quota, card, call->growth);
	return true;
}

/* How large the pool may be, which a call has made grow. Graphs make theirs no larger than what all
 * of them use; while others are being launched, it may be smaller for a moment. False: the driver
 * does not say. */
static bool read_most(const struct tenant *tenant, const struct tenant_pool *pool,
		      const struct pool_call *call, uint64_t *most)
{
	if (!pool_read_reserved(pool, most) || is_giving(tenant))
		return false;
	if (graph_use_is_under_way(pool) && call->bytes + call->others > *most)
		*most = quota_round_up(call->bytes + call->others, POOL_STEP);
	return true;
}

/* Makes held what the pool has grown by, as far as this call may have made it grow. The word is
 * another one in any case: whoever is about to lower it may have looked before the pool grew. */
static void keep_growth(struct tenant *tenant, struct tenant_pool *pool,
			const struct pool_call *call)
{
	struct quota *quota = &tenant->quota;
	uint64_t kept = 0;
	uint64_t grown;

	for (int tries = 0;; tries++) {
		uint64_t word = load_word(pool);
		uint64_t held = held_of(word);
		uint64_t reserved;

		/* As much as has been granted, while the driver does not say. */
		if (tries == SETTLE_TRIES || !read_most(tenant, pool, call, &reserved))
			reserved = held + call->growth;
		grown = reserved > held ? reserved - held : 0;
		if (grown > call->growth)
			grown = call->growth;
		if (grown > kept) {
			quota_keep(quota, pool->card, grown - kept);
			kept = grown;
		}
		if (swap_word(pool, word, next_word(word, held + grown)))
			break;
	}
	/* What has been granted and is not needed stands for what has not been. */
	if (pool_is_past(pool) && kept < call->growth) {
		quota_keep(quota, pool->card, call->growth - kept);
		kept = call->growth;
	}
	if (kept > grown)
		uncount(tenant, pool, kept - grown);
	if (kept < call->growth)
		quota_drop(quota, pool->card, call->growth - kept);
}

bool pool_call_end(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call)
{
	keep_growth(tenant, pool, call);
	end_growth(tenant, pool, call);
	region_tend(tenant->quota.region, false);
	return !pool_is_past(pool);
}

void pool_turn_end(struct tenant_pool *pool, const struct pool_call *call)
{
	if (call->is_tight)
		__atomic_store_n(&pool->tight, 0, __ATOMIC_SEQ_CST);
}
