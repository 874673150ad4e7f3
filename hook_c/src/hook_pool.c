// SPDX-License-Identifier: Apache-2.0
/* Stream-ordered memory. The card loses what the pool reserves, not what is allocated from it: a
 * pool grows in steps and keeps what is freed until a synchronisation, a trim, or for ever. So the
 * account follows each pool's own number, and before a call only the growth is asked for.
 *
 * Memory of graphs is a pool of the driver's own, one a device, with the same kind of number. */
#include "hook.h"

#define POOL_STEP (UINT64_C(32) << 20) /* by which a pool grows; measured on an H100 */

/* A pool and the part of the account that stands for it. */
static uint64_t reserved_of(const struct tenant_pool *pool)
{
	uint64_t bytes = 0;

	if (pool->is_graph)
		return driver.cuDeviceGetGraphMemAttribute(pool->device,
							   CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
							   &bytes) == CUDA_SUCCESS
			       ? bytes
			       : pool->charged;
	return driver.cuMemPoolGetAttribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
					    &bytes) == CUDA_SUCCESS
		       ? bytes
		       : __atomic_load_n(&pool->charged, __ATOMIC_RELAXED);
}

/* What a pool can give without growth is read from the driver now and then, and counted down by the
 * allocations in between: reading two numbers before each would cost more than the rest of the
 * hook. What is freed comes back with the next reading, so the count is never too high; a pool that
 * has become smaller has none. In the upper bits the number of the reading: one that another has
 * overtaken is not written. */
#define SPARE_STEP UINT64_C(512)
#define SPARE_BITS 40
#define SPARE_MASK ((UINT64_C(1) << SPARE_BITS) - 1)

static bool take_spare(struct tenant_pool *pool, uint64_t bytes)
{
	uint64_t steps = bytes / SPARE_STEP + (bytes % SPARE_STEP != 0);
	uint64_t word = __atomic_load_n(&pool->spare, __ATOMIC_ACQUIRE);

	while ((word & SPARE_MASK) >= steps)
		if (__atomic_compare_exchange_n(&pool->spare, &word, word - steps, true,
						__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			return true;
	return false;
}

/* Nothing to spare; the word that the next reading must find unchanged. */
static uint64_t drop_spare(struct tenant_pool *pool)
{
	uint64_t word = __atomic_load_n(&pool->spare, __ATOMIC_ACQUIRE);
	uint64_t next;

	do
		next = ((word >> SPARE_BITS) + 1) << SPARE_BITS;
	while (!__atomic_compare_exchange_n(&pool->spare, &word, next, true, __ATOMIC_ACQ_REL,
					    __ATOMIC_ACQUIRE));
	return next;
}

/* With no call under way, else its bytes would be counted twice or not at all. */
static void read_spare(struct tenant_pool *pool, uint64_t word)
{
	uint64_t reserved = reserved_of(pool);
	uint64_t used = UINT64_MAX;

	driver.cuMemPoolGetAttribute(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);

	uint64_t steps = reserved > used ? (reserved - used) / SPARE_STEP : 0;

	if (steps <= SPARE_MASK)
		__atomic_compare_exchange_n(&pool->spare, &word, word | steps, false,
					    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* Brings the account to what the driver says now. `held` bytes were reserved before the call that
 * is over. Threads may come in any order: the last one leaves the driver's number. */
static void settle(struct tenant *tenant, struct tenant_pool *pool, uint64_t held)
{
	uint64_t now = reserved_of(pool);

	/* Nearly always; without a locked instruction, which would wait for stores of the driver
	 * that are still on their way. */
	if (held == 0 && __atomic_load_n(&pool->charged, __ATOMIC_ACQUIRE) == now)
		return;

	uint64_t charged = __atomic_load_n(&pool->charged, __ATOMIC_ACQUIRE);

	/* A call that has taken from what was to spare may find it gone: it keeps its charge. */
	if (now < charged) {
		drop_spare(pool);

		uint64_t in_flight = __atomic_load_n(&pool->in_flight, __ATOMIC_ACQUIRE);

		now += in_flight < charged - now ? in_flight : charged - now;
	}

	uint64_t before = __atomic_exchange_n(&pool->charged, now, __ATOMIC_ACQ_REL) + held;

	if (now > before)
		region_add(&tenant->region, pool->card, now - before);
	else if (now < before)
		region_sub(&tenant->region, pool->card, before - now);
}

static uint32_t pool_count(const struct tenant *tenant)
{
	return __atomic_load_n(&tenant->pool_count, __ATOMIC_ACQUIRE);
}

void pools_settle(struct tenant *tenant)
{
	for (uint32_t i = 0; i < pool_count(tenant); i++)
		if (__atomic_load_n(&tenant->pool[i].state, __ATOMIC_ACQUIRE) == TENANT_POOL_LIVE)
			settle(tenant, &tenant->pool[i], 0);
}

static struct tenant_pool *find_pool(struct tenant *tenant, const void *handle, bool is_graph,
				     int device)
{
	for (uint32_t i = 0; i < pool_count(tenant); i++) {
		struct tenant_pool *pool = &tenant->pool[i];

		if (__atomic_load_n(&pool->state, __ATOMIC_ACQUIRE) == TENANT_POOL_LIVE &&
		    pool->is_graph == is_graph &&
		    (is_graph ? pool->device == device : pool->handle == handle))
			return pool;
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
		pool->handle = handle;
		pool->is_graph = is_graph;
		pool->device = device;
		pool->card = (uint32_t)card;
		pool->charged = 0;
		pool->in_flight = 0;
		drop_spare(pool);
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

/* By how much the pool will grow; other threads' calls that are under way count as done. */
static uint64_t growth(const struct tenant_pool *pool, uint64_t in_flight)
{
	uint64_t reserved = 0;
	uint64_t used = 0;
	uint64_t wanted;

	driver.cuMemPoolGetAttribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
	driver.cuMemPoolGetAttribute(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
	if (__builtin_add_overflow(used, in_flight, &wanted) || wanted > UINT64_MAX - POOL_STEP)
		return UINT64_MAX;
	return wanted <= reserved ? 0 : (wanted - reserved + POOL_STEP - 1) / POOL_STEP * POOL_STEP;
}

/* By how much the memory of graphs will grow. What other instances hold is not for one that has
 * never run; one that has run has its own. */
static uint64_t graph_growth(const struct tenant_pool *pool, uint64_t bytes, bool is_first)
{
	uint64_t reserved = reserved_of(pool);
	uint64_t used = 0;
	uint64_t wanted;

	if (is_first)
		driver.cuDeviceGetGraphMemAttribute(pool->device,
						    CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used);
	if (__builtin_add_overflow(used, bytes, &wanted) || wanted > UINT64_MAX - POOL_STEP)
		return UINT64_MAX;
	return wanted <= reserved ? 0 : (wanted - reserved + POOL_STEP - 1) / POOL_STEP * POOL_STEP;
}

static void trim_all(struct tenant *tenant)
{
	freed_settle(tenant, false);
	for (uint32_t i = 0; i < pool_count(tenant); i++) {
		struct tenant_pool *pool = &tenant->pool[i];

		if (__atomic_load_n(&pool->state, __ATOMIC_ACQUIRE) != TENANT_POOL_LIVE)
			continue;
		if (pool->is_graph)
			driver.cuDeviceGraphMemTrim(pool->device);
		else
			driver.cuMemPoolTrimTo(pool->handle, 0);
	}
	pools_settle(tenant);
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
	return find_pool(tenant, NULL, true, device) != NULL ||
			       add_pool(tenant, NULL, true, device) != NULL
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_OUT_OF_MEMORY;
}

static int charge(struct hook_call *call, struct tenant *tenant, struct tenant_pool *pool,
		  uint64_t bytes)
{
	call->pool = pool;
	call->entry.bytes = bytes;
	for (int tries = 0; tries < 2; tries++) {
		uint64_t in_flight = __atomic_add_fetch(&pool->in_flight, bytes, __ATOMIC_ACQ_REL);

		if (in_flight >= bytes && take_spare(pool, bytes)) {
			call->tenant = tenant;
			call->held = 0;
			call->entry.handle = 0;
			return CUDA_SUCCESS;
		}
		/* Before the driver is asked: whoever takes from the pool from now on waits for the
		 * next reading, or is under way already and counted. */
		call->entry.handle = drop_spare(pool);
		in_flight = __atomic_load_n(&pool->in_flight, __ATOMIC_ACQUIRE);

		uint64_t more = in_flight < bytes ? UINT64_MAX : growth(pool, in_flight);

		if (more == 0 || quota_reserve(&tenant->quota, pool->card, more)) {
			call->tenant = tenant;
			call->held = more;
			return CUDA_SUCCESS;
		}
		__atomic_sub_fetch(&pool->in_flight, bytes, __ATOMIC_ACQ_REL);
		trim_all(tenant); /* other pools may keep what nobody uses */
	}
	return CUDA_ERROR_OUT_OF_MEMORY;
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

	uint64_t in_flight =
		__atomic_sub_fetch(&call->pool->in_flight, call->entry.bytes, __ATOMIC_ACQ_REL);

	settle(call->tenant, call->pool, call->held);
	if (call->entry.handle != 0 && in_flight == 0)
		read_spare(call->pool, call->entry.handle);
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
			 status == CUDA_SUCCESS ? TENANT_POOL_LIVE : TENANT_POOL_FREE,
			 __ATOMIC_RELEASE);
	return status;
}

/* What is still allocated from a pool that is destroyed stays with the card, and in the account,
 * until the process ends: the driver gives no number for it any more. */
int pool_destroy_begin(struct hook_call *call, void *handle)
{
	uint64_t used = 0;

	call->tenant = tenant_joined();
	if (call->tenant == NULL)
		return CUDA_SUCCESS;
	call->pool = find_pool(call->tenant, handle, false, 0);
	if (call->pool == NULL ||
	    driver.cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) !=
		    CUDA_SUCCESS)
		call->tenant = NULL;
	call->held = used;
	return CUDA_SUCCESS;
}

int pool_destroy_end(struct hook_call *call, int status)
{
	if (call->tenant == NULL || status != CUDA_SUCCESS)
		return status;

	uint64_t charged = __atomic_exchange_n(&call->pool->charged, 0, __ATOMIC_ACQ_REL);
	uint64_t stays = call->held == 0 ? 0 : charged;

	region_sub(&call->tenant->region, call->pool->card, charged - stays);
	__atomic_store_n(&call->pool->state, TENANT_POOL_FREE, __ATOMIC_RELEASE);
	return status;
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

bool graph_memory_charge(struct hook_call *call, struct tenant *tenant, int device, uint64_t bytes,
			 bool is_first)
{
	struct tenant_pool *pool = find_pool(tenant, NULL, true, device);

	if (pool == NULL)
		pool = add_pool(tenant, NULL, true, device);
	if (pool == NULL)
		return false;
	for (int tries = 0; tries < 2; tries++) {
		uint64_t more = graph_growth(pool, bytes, is_first);

		if (more == 0 || quota_reserve(&tenant->quota, pool->card, more)) {
			call->pool = pool;
			call->held = more;
			return true;
		}
		trim_all(tenant); /* other graphs and pools may keep what nobody uses */
	}
	return false;
}

void graph_memory_settle(struct tenant *tenant, const struct hook_call *call)
{
	if (call->pool != NULL)
		settle(tenant, call->pool, call->held);
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
