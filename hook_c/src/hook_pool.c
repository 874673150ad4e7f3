// SPDX-License-Identifier: Apache-2.0
/* Stream-ordered memory. The card loses what the pool reserves, not what is allocated from it: a
 * pool grows in steps and keeps what is freed until a synchronisation, a trim, or for ever. So the
 * account holds for each pool what it can have reserved at most when the calls that are under way
 * are over, and a call that may make that more asks for it first.
 *
 * Memory of graphs is a pool of the driver's own, one a device, with the same kind of number. */
#include "hook.h"

#include "sys.h"

#include <time.h>

#define POOL_STEP (UINT64_C(32) << 20) /* by which a pool grows; measured on an H100 */

/* A pool's account is one word, so that no thread ever sees or changes a part of it:
 *
 *   bits  0-30  spare     4 KiB units that calls may still take with what is charged
 *   bits 31-52  charged   2 MiB units in the account
 *   bit  53     doubtful  more is charged than the pool may have: look again after the next call
 *   bits 54-63  version   of the last look at the driver's numbers
 *
 * `in_flight` grows before a call takes from the word and falls when the call is over. Whoever has
 * read the word before it and the driver's numbers after it knows of every call that the word knows
 * of; one that comes later has changed the word, and then nothing is written. What is freed is
 * found with the next look, so `spare` is never too high. */
#define SPARE_UNIT UINT64_C(4096)
#define SPARE_BITS 31
#define CHARGED_UNIT (UINT64_C(2) << 20)
#define CHARGED_BITS 22
#define DOUBTFUL (UINT64_C(1) << (SPARE_BITS + CHARGED_BITS))
#define VERSION_SHIFT (SPARE_BITS + CHARGED_BITS + 1)
#define MOST_BYTES (((UINT64_C(1) << CHARGED_BITS) - 1) * CHARGED_UNIT)
#define MASK(bits) ((UINT64_C(1) << (bits)) - 1)

/* While others are under way, what the driver has counted already is counted twice: a call that
 * does not fit for that reason waits until it is known. */
#define CROWD_WAIT_NS 100000
#define CROWD_WAITS 200

/* Whoever is at a pool that is to be destroyed asks the driver one question. */
#define END_WAIT_NS 50000
#define END_WAITS 200000 /* 10 s */

/* A pool's numbers fall before the card has the memory back: that takes until the call under which
 * it happens is over (at most 0.3 ms on an H100). A call that is under way for longer waits for the
 * card, not for memory. */
#define GIVING_NS UINT64_C(2000000)

static uint64_t spare_of(uint64_t word)
{
	return (word & MASK(SPARE_BITS)) * SPARE_UNIT;
}

static uint64_t charged_of(uint64_t word)
{
	return (word >> SPARE_BITS & MASK(CHARGED_BITS)) * CHARGED_UNIT;
}

/* What follows `word`. At most `taken` bytes of what is charged are used or will be. */
static uint64_t next_word(uint64_t word, uint64_t charged, uint64_t taken, bool is_doubtful)
{
	uint64_t spare = charged > taken ? (charged - taken) / SPARE_UNIT : 0;

	return ((word >> VERSION_SHIFT) + 1) << VERSION_SHIFT | (is_doubtful ? DOUBTFUL : 0) |
	       charged / CHARGED_UNIT << SPARE_BITS | spare;
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

/* The driver's numbers, and what is under way; in the order that the word's rule wants. */
struct look {
	uint64_t reserved;
	uint64_t used;
	uint64_t in_flight;
};

static bool read_reserved(const struct tenant_pool *pool, uint64_t *bytes)
{
	int status = pool->is_graph
			     ? driver.cuDeviceGetGraphMemAttribute(
				       pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes)
			     : driver.cuMemPoolGetAttribute(
				       pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes);

	if (status != CUDA_SUCCESS || *bytes > MOST_BYTES)
		return false;
	*bytes = (*bytes + CHARGED_UNIT - 1) / CHARGED_UNIT * CHARGED_UNIT;
	return true;
}

static bool read_used(const struct tenant_pool *pool, uint64_t *bytes)
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
	look->in_flight = __atomic_load_n(&pool->in_flight, __ATOMIC_SEQ_CST);
	if (!read_used(pool, &look->used) || !read_reserved(pool, &look->reserved))
		return false;
	if (look->used > look->reserved)
		look->used = look->reserved;
	return true;
}

/* What the pool will have reserved at most when all that is under way is over. */
static uint64_t most_of(const struct look *look)
{
	uint64_t wanted;

	if (__builtin_add_overflow(look->used, look->in_flight, &wanted) || wanted > MOST_BYTES)
		return UINT64_MAX;
	if (wanted <= look->reserved)
		return look->reserved;
	return look->reserved + (wanted - look->reserved + POOL_STEP - 1) / POOL_STEP * POOL_STEP;
}

static uint64_t now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

void pools_giving_begin(struct tenant *tenant)
{
	__atomic_add_fetch(&tenant->giving, 1, __ATOMIC_SEQ_CST);
}

void pools_giving_end(struct tenant *tenant)
{
	__atomic_sub_fetch(&tenant->giving, 1, __ATOMIC_SEQ_CST);
}

/* Whether what the pool has no longer reserved is back at the card, so that the account may fall to
 * `charged`. Two threads that ask at the same time begin the wait anew at worst. */
static bool is_given_back(const struct tenant *tenant, struct tenant_pool *pool, uint64_t charged)
{
	if (__atomic_load_n(&tenant->giving, __ATOMIC_SEQ_CST) == 0)
		return true;

	uint64_t since = __atomic_load_n(&pool->fell_ns, __ATOMIC_RELAXED);
	uint64_t now = now_ns();

	if (since != 0 && charged >= __atomic_load_n(&pool->fell_to, __ATOMIC_RELAXED))
		return now - since >= GIVING_NS;
	__atomic_store_n(&pool->fell_to, charged, __ATOMIC_RELAXED);
	__atomic_store_n(&pool->fell_ns, now, __ATOMIC_RELAXED);
	return false;
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

/* Brings the account to what the driver says now. A thread that comes in between settles itself, or
 * leaves the word doubtful. */
static void settle(struct tenant *tenant, struct tenant_pool *pool)
{
	for (int tries = 0; tries < 8; tries++) {
		uint64_t word = load_word(pool);
		uint64_t charged = charged_of(word);
		struct look look = {0};

		if ((word & DOUBTFUL) == 0) {
			/* Nearly always. */
			if (!read_reserved(pool, &look.reserved) || look.reserved == charged)
				return;
		}
		if (!look_at(pool, &look))
			return;

		uint64_t most = most_of(&look);
		uint64_t now = most < charged ? most : charged;
		bool is_doubtful = look.in_flight != 0;

		if (look.reserved > now) { /* past us, or by more than was foreseen */
			if (load_word(pool) != word)
				continue; /* by a call that has charged it */
			now = look.reserved;
		}
		if (now < charged && !is_given_back(tenant, pool, now)) {
			now = charged;
			is_doubtful = true;
		} else {
			__atomic_store_n(&pool->fell_ns, 0, __ATOMIC_RELAXED);
		}

		uint64_t next = next_word(word, now, look.used + look.in_flight, is_doubtful);

		if (now > charged)
			count_taken(tenant, pool, now - charged);
		if (swap_word(pool, word, next)) {
			if (now < charged)
				uncount(tenant, pool, charged - now);
			return;
		}
		if (now > charged)
			uncount(tenant, pool, now - charged);
	}
}

enum growth {
	GROWTH_NONE, /* or it is charged */
	GROWTH_REFUSED,
	GROWTH_CROWDED, /* refused, and perhaps only because of what is counted twice */
};

/* Makes room for a call of `bytes`, which stand in `in_flight`. */
static enum growth charge_growth(struct tenant *tenant, struct tenant_pool *pool, uint64_t bytes)
{
	for (;;) {
		uint64_t word = load_word(pool);
		uint64_t charged = charged_of(word);
		struct look look;

		/* What graphs use changes with calls that take nothing: it is always looked at. */
		if (spare_of(word) >= bytes && (bytes == 0 || !pool->is_graph)) {
			if (swap_word(pool, word, word - bytes / SPARE_UNIT))
				return GROWTH_NONE;
			continue;
		}
		if (!look_at(pool, &look))
			return GROWTH_REFUSED;

		uint64_t most = most_of(&look);
		uint64_t more = most > charged ? most - charged : 0;

		if (more != 0 &&
		    (most > MOST_BYTES || !quota_reserve(&tenant->quota, pool->card, more)))
			return look.in_flight > bytes ? GROWTH_CROWDED : GROWTH_REFUSED;

		/* Not lowered here. What the driver does not take of it is given back at the end.
		 */
		uint64_t now = charged + more;
		bool is_doubtful = more != 0 || look.in_flight > bytes || (word & DOUBTFUL) != 0;

		if (swap_word(pool, word,
			      next_word(word, now, look.used + look.in_flight, is_doubtful)))
			return GROWTH_NONE;
		if (more != 0)
			quota_release(&tenant->quota, pool->card, more);
	}
}

static bool begin_call(struct tenant *tenant, struct tenant_pool *pool, uint64_t bytes)
{
	__atomic_add_fetch(&pool->in_flight, bytes, __ATOMIC_SEQ_CST);

	enum growth growth = charge_growth(tenant, pool, bytes);

	for (int waits = 0; growth == GROWTH_CROWDED && waits < CROWD_WAITS; waits++) {
		sys_sleep_ns(CROWD_WAIT_NS);
		growth = charge_growth(tenant, pool, bytes);
	}
	if (growth == GROWTH_NONE)
		return true;
	__atomic_sub_fetch(&pool->in_flight, bytes, __ATOMIC_SEQ_CST);
	return false;
}

/* Asking the driver costs as much as the rest of the hook, so after small calls it is asked only
 * once in a while: a pool that grows by more than was foreseen is seen within a step. */
static void end_call(struct tenant *tenant, struct tenant_pool *pool, uint64_t bytes)
{
	uint64_t unseen = __atomic_load_n(&pool->unseen, __ATOMIC_RELAXED) + bytes;

	__atomic_sub_fetch(&pool->in_flight, bytes, __ATOMIC_SEQ_CST);
	if (unseen < POOL_STEP && (load_word(pool) & DOUBTFUL) == 0) {
		__atomic_store_n(&pool->unseen, unseen, __ATOMIC_RELAXED);
		return;
	}
	__atomic_store_n(&pool->unseen, 0, __ATOMIC_RELAXED);
	settle(tenant, pool);
}

static uint32_t pool_count(const struct tenant *tenant)
{
	return __atomic_load_n(&tenant->pool_count, __ATOMIC_ACQUIRE);
}

/* A pool's place is used again when its pool is destroyed and nobody is at it any more. Whoever has
 * it pinned may ask the driver about it. */
static void unpin(struct tenant_pool *pool)
{
	uint32_t state = TENANT_POOL_ENDED;

	if (__atomic_fetch_sub(&pool->pins, 1, __ATOMIC_SEQ_CST) == 1)
		__atomic_compare_exchange_n(&pool->state, &state, TENANT_POOL_FREE, false,
					    __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

static bool pin(struct tenant_pool *pool)
{
	if (__atomic_load_n(&pool->state, __ATOMIC_RELAXED) != TENANT_POOL_LIVE)
		return false;
	__atomic_fetch_add(&pool->pins, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&pool->state, __ATOMIC_SEQ_CST) == TENANT_POOL_LIVE)
		return true;
	unpin(pool);
	return false;
}

void pools_settle(struct tenant *tenant)
{
	for (uint32_t i = 0; i < pool_count(tenant); i++) {
		if (!pin(&tenant->pool[i]))
			continue;
		settle(tenant, &tenant->pool[i]);
		unpin(&tenant->pool[i]);
	}
}

/* Pinned, as are all pools that the functions below return. */
static struct tenant_pool *find_pool(struct tenant *tenant, const void *handle, bool is_graph,
				     int device)
{
	for (uint32_t i = 0; i < pool_count(tenant); i++) {
		struct tenant_pool *pool = &tenant->pool[i];

		if (!pin(pool))
			continue;
		if (pool->is_graph == is_graph &&
		    (is_graph ? pool->device == device : pool->handle == handle))
			return pool;
		unpin(pool);
	}
	return NULL;
}

/* NULL: the device is not promised, or there are too many pools. Without a handle the pool is not
 * found until it has one. */
static struct tenant_pool *add_pool(struct tenant *tenant, void *handle, bool is_graph, int device)
{
	int card = device_card(tenant, device);

	if (card < 0)
		return NULL;
	for (uint32_t i = 0; i < TENANT_MAX_POOLS; i++) {
		struct tenant_pool *pool = &tenant->pool[i];
		uint32_t state = TENANT_POOL_FREE;

		if (!__atomic_compare_exchange_n(&pool->state, &state, TENANT_POOL_TAKEN, false,
						 __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			continue;
		__atomic_fetch_add(&pool->pins, 1, __ATOMIC_SEQ_CST);
		pool->handle = handle;
		pool->is_graph = is_graph;
		pool->device = device;
		pool->card = (uint32_t)card;
		pool->in_flight = 0;
		pool->past = 0;
		pool->fell_ns = 0;
		__atomic_store_n(&pool->word, next_word(load_word(pool), 0, 0, false),
				 __ATOMIC_SEQ_CST);
		if (is_graph || handle != NULL)
			__atomic_store_n(&pool->state, TENANT_POOL_LIVE, __ATOMIC_RELEASE);

		uint32_t count = pool_count(tenant);

		while (count < i + 1 &&
		       !__atomic_compare_exchange_n(&tenant->pool_count, &count, i + 1, true,
						    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			;
		return pool;
	}
	return NULL;
}

/* The device's pool that cuMemAllocAsync takes from. A program may make any pool that one, so a
 * pool that we have not seen made is known by its device. */
static struct tenant_pool *pool_of_device(struct tenant *tenant, int device)
{
	void *handle;

	if (driver.cuDeviceGetMemPool(&handle, device) != CUDA_SUCCESS)
		return NULL;

	struct tenant_pool *pool = find_pool(tenant, handle, false, device);

	return pool != NULL ? pool : add_pool(tenant, handle, false, device);
}

static struct tenant_pool *pool_of_graphs(struct tenant *tenant, int device)
{
	struct tenant_pool *pool = find_pool(tenant, NULL, true, device);

	return pool != NULL ? pool : add_pool(tenant, NULL, true, device);
}

/* A pool that is neither made here nor a device's own is imported, or on the host: not charged. */
static struct tenant_pool *pool_of_handle(struct tenant *tenant, void *handle)
{
	struct tenant_pool *pool = find_pool(tenant, handle, false, 0);
	void *own;
	int count = 0;

	if (pool != NULL || driver.cuDeviceGetCount(&count) != CUDA_SUCCESS)
		return pool;
	for (int device = 0; device < count; device++)
		if ((driver.cuDeviceGetDefaultMemPool(&own, device) == CUDA_SUCCESS &&
		     own == handle) ||
		    (driver.cuDeviceGetMemPool(&own, device) == CUDA_SUCCESS && own == handle))
			return add_pool(tenant, handle, false, device);
	return NULL;
}

static bool is_any_falling(struct tenant *tenant)
{
	for (uint32_t i = 0; i < pool_count(tenant); i++)
		if (__atomic_load_n(&tenant->pool[i].fell_ns, __ATOMIC_RELAXED) != 0)
			return true;
	return false;
}

static void trim_all(struct tenant *tenant)
{
	freed_settle(tenant, false);
	pools_giving_begin(tenant);
	for (uint32_t i = 0; i < pool_count(tenant); i++) {
		struct tenant_pool *pool = &tenant->pool[i];

		if (!pin(pool))
			continue;
		if (pool->is_graph)
			driver.cuDeviceGraphMemTrim(pool->device);
		else
			driver.cuMemPoolTrimTo(pool->handle, 0);
		unpin(pool);
	}
	pools_giving_end(tenant);
	pools_settle(tenant);
	if (is_any_falling(tenant)) {
		sys_sleep_ns(GIVING_NS);
		pools_settle(tenant);
	}
}

bool pools_trim_for(struct tenant *tenant)
{
	bool had_freed = freed_settle(tenant, true);

	if (pool_count(tenant) == 0)
		return had_freed;
	trim_all(tenant);
	return true;
}

static bool is_capturing(void *stream)
{
	int status = 0;

	return driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != 0;
}

static int device_of_graph(const void *properties)
{
	const struct cuda_pool_properties *wanted = properties;

	return wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? wanted->location.id : -1;
}

/* An allocation in a graph takes its memory at the first launch. What cannot fit is refused when
 * the node is made, because a program expects the error there. */
static int check_node(struct tenant *tenant, int device, uint64_t bytes)
{
	int card = device_card(tenant, device);

	if (card < 0 || bytes > UINT64_MAX - POOL_STEP ||
	    !quota_reserve(&tenant->quota, (unsigned int)card, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	quota_release(&tenant->quota, (unsigned int)card, bytes);

	struct tenant_pool *pool = pool_of_graphs(tenant, device);

	if (pool == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	unpin(pool);
	return CUDA_SUCCESS;
}

static int charge(struct hook_call *call, struct tenant *tenant, struct tenant_pool *pool,
		  uint64_t bytes)
{
	bool is_granted = false;

	if (bytes <= MOST_BYTES) {
		bytes = (bytes + SPARE_UNIT - 1) / SPARE_UNIT * SPARE_UNIT;
		is_granted = begin_call(tenant, pool, bytes);
		if (!is_granted) {
			trim_all(tenant); /* other pools may keep what nobody uses */
			is_granted = begin_call(tenant, pool, bytes);
		}
	}
	if (!is_granted) {
		unpin(pool);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	call->tenant = tenant;
	call->pool = pool;
	call->held = bytes;
	return CUDA_SUCCESS;
}

static int begin(struct hook_call *call, const void *out, uint64_t bytes, void *handle,
		 bool has_handle, void *stream, bool is_thread)
{
	struct tenant *tenant;
	enum tenant_state state = tenant_join(&tenant);

	call->tenant = NULL;
	if (state == TENANT_INERT || out == NULL || bytes == 0)
		return CUDA_SUCCESS;
	if (state == TENANT_REFUSED)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	if (stream == NULL && is_thread)
		stream = (void *)STREAM_PER_THREAD;

	void *context;
	int device = stream_device(stream, &context);

	if (device < 0)
		return CUDA_SUCCESS; /* no context: the driver says so itself */
	if (is_capturing(stream))
		return check_node(tenant, device, bytes);

	struct tenant_pool *pool =
		has_handle ? pool_of_handle(tenant, handle) : pool_of_device(tenant, device);

	if (pool == NULL)
		return has_handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	return charge(call, tenant, pool, bytes);
}

int pool_alloc_begin(struct hook_call *call, const void *out, uint64_t bytes, void *stream,
		     bool is_thread)
{
	return begin(call, out, bytes, NULL, false, stream, is_thread);
}

int pool_alloc_from_begin(struct hook_call *call, const void *out, uint64_t bytes, void *pool,
			  void *stream, bool is_thread)
{
	return begin(call, out, bytes, pool, true, stream, is_thread);
}

int pool_alloc_end(struct hook_call *call, int status)
{
	if (call->tenant == NULL)
		return status;
	end_call(call->tenant, call->pool, call->held);
	unpin(call->pool);
	return status;
}

/* The place comes first: memory of a pool that has none would not be counted. */
int pool_create_begin(struct hook_call *call, const void *out, const void *properties)
{
	const struct cuda_pool_properties *wanted = properties;
	struct tenant *tenant;
	enum tenant_state state = tenant_join(&tenant);

	call->tenant = NULL;
	if (state == TENANT_INERT || out == NULL || wanted == NULL ||
	    wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_SUCCESS;
	if (state == TENANT_REFUSED)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	call->pool = add_pool(tenant, NULL, false, wanted->location.id);
	if (call->pool == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	call->tenant = tenant;
	return CUDA_SUCCESS;
}

int pool_create_end(struct hook_call *call, int status, uint64_t handle)
{
	if (call->tenant == NULL)
		return status;
	call->pool->handle = (void *)(uintptr_t)handle;
	__atomic_store_n(&call->pool->state,
			 status == CUDA_SUCCESS ? TENANT_POOL_LIVE : TENANT_POOL_ENDED,
			 __ATOMIC_SEQ_CST);
	unpin(call->pool);
	return status;
}

/* Nobody may ask the driver about a pool that it destroys: from now on it is found no more, and
 * whoever is at it comes to an end. False: some thread does not. */
static bool end_pool(struct tenant_pool *pool)
{
	__atomic_store_n(&pool->state, TENANT_POOL_ENDED, __ATOMIC_SEQ_CST);
	for (int waits = 0; waits < END_WAITS; waits++) {
		if (__atomic_load_n(&pool->pins, __ATOMIC_SEQ_CST) == 1)
			return true;
		sys_sleep_ns(END_WAIT_NS);
	}
	return false;
}

/* What is still allocated from a pool that is destroyed stays with the card, and in the account,
 * until the process ends: the driver gives no number for it any more. After a trim that is all that
 * is reserved; what counts as used may be long gone. */
int pool_destroy_begin(struct hook_call *call, void *handle)
{
	call->tenant = tenant_joined();
	if (call->tenant == NULL)
		return CUDA_SUCCESS;
	call->pool = find_pool(call->tenant, handle, false, 0);
	if (call->pool == NULL) {
		call->tenant = NULL;
		return CUDA_SUCCESS;
	}
	call->held = UINT64_MAX;
	pools_giving_begin(call->tenant);
	if (end_pool(call->pool)) {
		driver.cuMemPoolTrimTo(handle, 0);
		if (!read_reserved(call->pool, &call->held))
			call->held = UINT64_MAX;
	}
	return CUDA_SUCCESS;
}

int pool_destroy_end(struct hook_call *call, int status)
{
	uint64_t word;

	if (call->tenant == NULL)
		return status;
	pools_giving_end(call->tenant);
	if (status == CUDA_SUCCESS) {
		do
			word = load_word(call->pool);
		while (!swap_word(call->pool, word, next_word(word, 0, 0, false)));
		if (call->held < charged_of(word))
			uncount(call->tenant, call->pool, charged_of(word) - call->held);
	} else {
		__atomic_store_n(&call->pool->state, TENANT_POOL_LIVE, __ATOMIC_SEQ_CST);
		settle(call->tenant, call->pool);
	}
	unpin(call->pool);
	return status;
}

int pools_begin(struct hook_call *call)
{
	struct tenant *tenant = tenant_joined();

	call->giving = tenant != NULL && pool_count(tenant) != 0 ? tenant : NULL;
	if (call->giving != NULL)
		pools_giving_begin(call->giving);
	return CUDA_SUCCESS;
}

int pools_given_end(struct hook_call *call, int status)
{
	if (call->giving != NULL)
		pools_giving_end(call->giving);
	return pools_end(status);
}

int pools_end(int status)
{
	struct tenant *tenant = tenant_joined();

	if (tenant == NULL)
		return status;
	freed_settle(tenant, false);
	if (pool_count(tenant) != 0)
		pools_settle(tenant);
	return status;
}

/* What other instances hold is not for one that has never run; one that has run has its own. */
static uint64_t graph_bytes(const struct tenant_pool *pool, uint64_t bytes, bool is_first)
{
	uint64_t used = 0;

	if (!is_first && !read_used(pool, &used))
		used = 0; /* then all of it is asked for */
	bytes = bytes > used ? bytes - used : 0;
	return bytes > MOST_BYTES ? bytes : (bytes + SPARE_UNIT - 1) / SPARE_UNIT * SPARE_UNIT;
}

bool graph_memory_charge(struct hook_call *call, struct tenant *tenant, int device, uint64_t bytes,
			 bool is_first)
{
	struct tenant_pool *pool = pool_of_graphs(tenant, device);

	if (pool == NULL)
		return false;
	for (int tries = 0; tries < 2; tries++) {
		uint64_t more = graph_bytes(pool, bytes, is_first);

		if (more <= MOST_BYTES && begin_call(tenant, pool, more)) {
			call->pool = pool;
			call->held = more;
			return true;
		}
		trim_all(tenant); /* other graphs and pools may keep what nobody uses */
	}
	unpin(pool);
	return false;
}

void graph_memory_settle(struct tenant *tenant, const struct hook_call *call)
{
	if (call->pool == NULL)
		return;
	end_call(tenant, call->pool, call->held);
	unpin(call->pool);
}

int graph_node_begin(struct hook_call *call, const void *parameters)
{
	const struct cuda_graph_alloc *node = parameters;
	struct tenant *tenant;
	enum tenant_state state = tenant_join(&tenant);

	call->tenant = NULL;
	if (state == TENANT_INERT || node == NULL || node->bytes == 0)
		return CUDA_SUCCESS;
	if (state == TENANT_REFUSED)
		return CUDA_ERROR_SYSTEM_NOT_READY;

	int device = device_of_graph(node);

	return device < 0 ? CUDA_SUCCESS : check_node(tenant, device, node->bytes);
}

int graph_any_node_begin(struct hook_call *call, const void *parameters)
{
	const struct cuda_graph_node *node = parameters;

	call->tenant = NULL;
	return node == NULL || node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC
		       ? CUDA_SUCCESS
		       : graph_node_begin(call, &node->alloc);
}
