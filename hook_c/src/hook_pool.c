// SPDX-License-Identifier: Apache-2.0
/* Stream-ordered memory, and memory of graphs, which is a pool of the driver's own, one a device.
 *
 * A pool keeps what is freed until a wait for the card, a trim, or for ever. The driver is told to
 * keep everything: a wait may last, and while it lasted nobody could know what the card still has.
 * What it would give back at the end of a wait, we give back when the wait is over. */
#include "graph_use.h"
#include "launch_streams.h"
#include "pool_account.h"

#include "sys.h"

#include <string.h>

/* Whoever is at a pool that is to be destroyed asks the driver one question. */
#define END_WAIT_NS 50000
#define END_WAITS 200000 /* 10 s */

#define SELECTION UINT64_C(1)
#define SELECTION_VERSION (UINT64_C(1) << 16)

#define PIECE 512 /* what a pool cuts its memory into */

/* Neither an allocation nor a trim waits for the card. */
#define CROWD_WAIT_NS 50000
#define CROWD_WAITS 2000 /* 100 ms */

static uint32_t pool_count(const struct tenant *tenant)
{
	return __atomic_load_n(&tenant->pool_count, __ATOMIC_ACQUIRE);
}

void pools_settle(struct tenant *tenant)
{
	for (uint32_t i = 0; i < pool_count(tenant); i++) {
		if (!pool_pin(&tenant->pool[i]))
			continue;
		pool_settle(tenant, &tenant->pool[i]);
		pool_unpin(&tenant->pool[i]);
	}
}

static bool is_pool(const struct tenant_pool *pool, const void *handle, bool is_graph, int device)
{
	return __atomic_load_n(&pool->is_graph, __ATOMIC_RELAXED) == is_graph &&
	       (is_graph ? __atomic_load_n(&pool->device, __ATOMIC_RELAXED) == device
			 : __atomic_load_n(&pool->handle, __ATOMIC_RELAXED) == handle);
}

/* Pinned, as are all pools that the functions below return. */
static struct tenant_pool *find_pool(struct tenant *tenant, const void *handle, bool is_graph,
				     int device)
{
	for (uint32_t i = 0; i < pool_count(tenant); i++) {
		struct tenant_pool *pool = &tenant->pool[i];

		if (!is_pool(pool, handle, is_graph, device) || !pool_pin(pool))
			continue;
		if (is_pool(pool, handle, is_graph, device)) /* still */
			return pool;
		pool_unpin(pool);
	}
	return NULL;
}

static void lock_pools(struct tenant *tenant)
{
	while (__atomic_exchange_n(&tenant->pools_locked, 1, __ATOMIC_ACQUIRE) != 0)
		sys_yield();
}

static void unlock_pools(struct tenant *tenant)
{
	__atomic_store_n(&tenant->pools_locked, 0, __ATOMIC_RELEASE);
}

static struct tenant_pool *take_place(struct tenant *tenant, bool is_own)
{
	uint32_t places = is_own ? TENANT_MAX_POOLS : TENANT_MADE_POOLS;

	for (uint32_t i = 0; i < places; i++) {
		struct tenant_pool *pool = &tenant->pool[i];

		if (pool->state != TENANT_POOL_FREE)
			continue;
		__atomic_store_n(&pool->state, TENANT_POOL_TAKEN, __ATOMIC_SEQ_CST);
		if (pool_count(tenant) <= i)
			__atomic_store_n(&tenant->pool_count, i + 1, __ATOMIC_RELEASE);
		return pool;
	}
	return NULL;
}

/* From now on the driver gives nothing back by itself. */
static void keep_all(struct tenant_pool *pool, uint64_t threshold)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	uint64_t all = UINT64_MAX;

	exchange_capture_mode(&mode);
	if (driver.cuMemPoolSetAttribute(pool->handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all) ==
	    CUDA_SUCCESS)
		__atomic_store_n(&pool->threshold, threshold, __ATOMIC_RELEASE);
	exchange_capture_mode(&mode);
}

static uint64_t read_threshold(void *handle)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	uint64_t threshold = 0; /* what a pool begins with */

	exchange_capture_mode(&mode);
	if (driver.cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) !=
	    CUDA_SUCCESS)
		threshold = 0;
	exchange_capture_mode(&mode);
	return threshold;
}

/* NULL: the device is not promised, or there are too many pools. Without a handle the pool is not
 * found until it has one. */
static struct tenant_pool *add_pool(struct tenant *tenant, void *handle, bool is_graph, int device)
{
	int card = device_card(tenant, device);
	struct tenant_pool *pool = NULL;
	bool is_new = false;
	uint64_t threshold;

	if (card < 0)
		return NULL;
	threshold = handle == NULL ? 0 : read_threshold(handle);
	lock_pools(tenant);
	if (is_graph || handle != NULL)
		pool = find_pool(tenant, handle, is_graph, device); /* another thread was first */
	if (pool == NULL) {
		pool = take_place(tenant, is_graph || handle != NULL);
		is_new = pool != NULL;
	}
	if (is_new) {
		__atomic_store_n(&pool->handle, handle, __ATOMIC_RELAXED);
		__atomic_store_n(&pool->is_graph, is_graph, __ATOMIC_RELAXED);
		__atomic_store_n(&pool->device, device, __ATOMIC_RELAXED);
		pool->card = (uint32_t)card;
		pool->threshold = UINT64_MAX;
		pool_account_start(pool);
		if (is_graph || handle != NULL)
			__atomic_store_n(&pool->state, TENANT_POOL_LIVE, __ATOMIC_RELEASE);
	}
	unlock_pools(tenant);
	if (is_new && handle != NULL)
		keep_all(pool, threshold);
	return pool;
}

static struct tenant_pool *find_current(struct tenant *tenant, int device)
{
	void *handle;

	if (driver.cuDeviceGetMemPool(&handle, device) != CUDA_SUCCESS)
		return NULL;

	struct tenant_pool *pool = find_pool(tenant, handle, false, device);

	return pool != NULL ? pool : add_pool(tenant, handle, false, device);
}

/* The device's pool that cuMemAllocAsync takes from. A program may make any pool that one, so a
 * pool that we have not seen made is known by its device. */
static struct tenant_pool *pool_of_device(struct tenant *tenant, int device)
{
	if (device < 0 || device >= TENANT_MAX_ORDINALS)
		return find_current(tenant, device);

	uint64_t *known = &tenant->pool_of_ordinal[device];
	uint64_t version = __atomic_load_n(&tenant->pools_version, __ATOMIC_ACQUIRE);
	uint64_t value = __atomic_load_n(known, __ATOMIC_ACQUIRE);

	if ((uint32_t)value != 0 && value >> 32 == version) {
		struct tenant_pool *pool = &tenant->pool[(uint32_t)value - 1];

		if (pool_pin(pool))
			return pool;
	}

	struct tenant_pool *pool = find_current(tenant, device);

	if (pool != NULL)
		__atomic_store_n(known, version << 32 | (uint64_t)(pool - tenant->pool + 1),
				 __ATOMIC_RELEASE);
	return pool;
}

static void forget_current(struct tenant *tenant)
{
	__atomic_add_fetch(&tenant->pools_version, 1, __ATOMIC_ACQ_REL);
}

int pool_select_begin(struct hook_call *call)
{
	call->tenant = tenant_joined();
	if (call->tenant != NULL)
		__atomic_add_fetch(&call->tenant->selections, SELECTION, __ATOMIC_SEQ_CST);
	return CUDA_SUCCESS;
}

int pool_select_end(struct hook_call *call, int status)
{
	if (call->tenant == NULL)
		return status;
	forget_current(call->tenant);
	__atomic_add_fetch(&call->tenant->selections, SELECTION_VERSION - SELECTION,
			   __ATOMIC_SEQ_CST);
	return status;
}

static uint64_t load_selections(const struct tenant *tenant)
{
	return __atomic_load_n(&tenant->selections, __ATOMIC_SEQ_CST);
}

/* Whether the driver may have taken the memory from another pool than the one that was charged. */
static bool is_elsewhere(const struct tenant *tenant, const struct hook_call *call)
{
	uint64_t now = load_selections(tenant);

	return call->is_of_device && (now != call->selections || now % SELECTION_VERSION != 0);
}

static struct tenant_pool *pool_of_graphs(struct tenant *tenant, int device)
{
	struct tenant_pool *pool = find_pool(tenant, NULL, true, device);

	return pool != NULL ? pool : add_pool(tenant, NULL, true, device);
}

/* Whose own pool it is; -1: nobody's. */
static int device_of_pool(const void *handle)
{
	void *own;
	int count = 0;

	if (driver.cuDeviceGetCount(&count) != CUDA_SUCCESS)
		return -1;
	for (int device = 0; device < count; device++)
		if ((driver.cuDeviceGetDefaultMemPool(&own, device) == CUDA_SUCCESS &&
		     own == handle) ||
		    (driver.cuDeviceGetMemPool(&own, device) == CUDA_SUCCESS && own == handle))
			return device;
	return -1;
}

/* A pool that is neither made here nor a device's own is imported, or on the host: not charged. One
 * that is charged and is NULL all the same must not be allocated from. */
static struct tenant_pool *pool_of_handle(struct tenant *tenant, void *handle, bool *is_charged)
{
	struct tenant_pool *pool = find_pool(tenant, handle, false, 0);
	int device = pool == NULL ? device_of_pool(handle) : -1;

	*is_charged = pool != NULL || device >= 0;
	return device >= 0 ? add_pool(tenant, handle, false, device) : pool;
}

/* How much a pool keeps is ours to see to; the driver judges the call. */
int pool_set_attribute(void *handle, int attribute, void *value)
{
	struct tenant *tenant = tenant_joined();
	struct tenant_pool *pool = NULL;
	uint64_t all = UINT64_MAX;
	uint64_t threshold;
	bool is_charged;
	int status;

	if (tenant != NULL && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && value != NULL)
		pool = pool_of_handle(tenant, handle, &is_charged);
	status = driver.cuMemPoolSetAttribute(handle, attribute, pool == NULL ? value : &all);
	if (pool == NULL)
		return status;
	if (status == CUDA_SUCCESS) {
		memcpy(&threshold, value, sizeof(threshold));
		__atomic_store_n(&pool->threshold, threshold, __ATOMIC_RELEASE);
	}
	pool_unpin(pool);
	return status;
}

int pool_get_end(int status, void *handle, int attribute, void *value)
{
	struct tenant *tenant = tenant_joined();

	if (tenant == NULL || status != CUDA_SUCCESS ||
	    attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		return status;

	struct tenant_pool *pool = find_pool(tenant, handle, false, 0);

	if (pool != NULL) {
		uint64_t threshold = __atomic_load_n(&pool->threshold, __ATOMIC_ACQUIRE);

		memcpy(value, &threshold, sizeof(threshold));
		pool_unpin(pool);
	}
	return status;
}

/* The pool gives back what nobody uses, as far as the driver knows. */
static void trim(struct tenant *tenant, struct tenant_pool *pool, uint64_t keep_bytes)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	exchange_capture_mode(&mode);
	pools_giving_begin(tenant);
	if (pool->is_graph)
		driver.cuDeviceGraphMemTrim(pool->device);
	else
		driver.cuMemPoolTrimTo(pool->handle, keep_bytes);
	pools_giving_end(tenant);
	exchange_capture_mode(&mode);
}

/* Whether the pool has anything to give back at the end of a wait. */
static bool is_above_threshold(const struct tenant *tenant, const struct tenant_pool *pool,
			       uint64_t threshold)
{
	uint64_t reserved;
	uint64_t used;

	if (pool->is_graph || threshold == UINT64_MAX || !pool_read_reserved(pool, &reserved) ||
	    reserved <= threshold)
		return false;
	/* What cuMemFree has freed the driver goes on to count as used. */
	return __atomic_load_n(&tenant->plain_frees, __ATOMIC_RELAXED) != 0 ||
	       !pool_read_used(pool, &used) || used > reserved || reserved - used >= POOL_STEP;
}

void pools_waited(struct tenant *tenant)
{
	for (uint32_t i = 0; i < pool_count(tenant); i++) {
		struct tenant_pool *pool = &tenant->pool[i];

		if (!pool_pin(pool))
			continue;

		uint64_t threshold = __atomic_load_n(&pool->threshold, __ATOMIC_ACQUIRE);

		if (is_above_threshold(tenant, pool, threshold))
			trim(tenant, pool, threshold);
		pool_settle(tenant, pool);
		pool_unpin(pool);
	}
}

static bool is_any_crowded(struct tenant *tenant)
{
	for (uint32_t i = 0; i < pool_count(tenant); i++)
		if (pool_is_crowded(&tenant->pool[i]))
			return true;
	return __atomic_load_n(&tenant->giving, __ATOMIC_SEQ_CST) != 0;
}

/* False: not all that is free could be given back, because the card has not come to it. */
static bool trim_all(struct tenant *tenant, int *waits)
{
	bool is_idle = streams_wait(tenant, ALL_STREAMS, waits);

	for (uint32_t i = 0; i < pool_count(tenant); i++) {
		struct tenant_pool *pool = &tenant->pool[i];

		if (!pool_pin(pool))
			continue;
		trim(tenant, pool, 0);
		pool_unpin(pool);
	}
	/* What other threads may take or are giving back at this moment is charged meanwhile. */
	for (int naps = 0; naps < CROWD_WAITS && is_any_crowded(tenant); naps++)
		sys_sleep_ns(CROWD_WAIT_NS);
	pools_settle(tenant);
	return is_idle;
}

bool pools_trim_for(struct tenant *tenant)
{
	int waits = 0;
	bool had_freed = freed_settle(tenant, &waits);

	if (pool_count(tenant) == 0)
		return had_freed;
	trim_all(tenant, &waits);
	return true;
}

bool pools_reserve(struct tenant *tenant, uint32_t card, uint64_t bytes)
{
	return quota_reserve(&tenant->quota, card, bytes) ||
	       (pools_trim_for(tenant) && quota_reserve(&tenant->quota, card, bytes));
}

static int device_of_graph(const void *properties)
{
	const struct cuda_pool_properties *wanted = properties;

	return wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? wanted->location.id : -1;
}

/* What the device keeps for graphs may be the node's when it comes to that. */
static bool can_fit(struct tenant *tenant, const struct tenant_pool *pool, uint64_t bytes)
{
	uint64_t reserved = 0;

	if (!pool_read_reserved(pool, &reserved))
		reserved = 0;
	bytes = bytes > reserved ? bytes - reserved : 0;
	if (!quota_reserve(&tenant->quota, pool->card, bytes))
		return false;
	quota_release(&tenant->quota, pool->card, bytes);
	return true;
}

/* An allocation in a graph takes its memory at the first launch. What cannot fit is refused when
 * the node is made, because a program expects the error there. */
static int check_node(struct tenant *tenant, int device, uint64_t bytes)
{
	struct tenant_pool *pool = pool_of_graphs(tenant, device);

	if (pool == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;

	bool fits = bytes <= POOL_MOST_BYTES &&
		    (can_fit(tenant, pool, bytes) ||
		     (pools_trim_for(tenant) && can_fit(tenant, pool, bytes)));

	pool_unpin(pool);
	return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Near the limit. What this stream has freed it may have again at once, so the others are waited
 * for first; they are seldom more than none. Then for everything, so that a trim gives back what
 * is free; and if the card is too busy for that, what is free stays for the driver to find. */
static bool take_tight(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call,
		       const void *stream)
{
	int *waits = &call->waits;

	if (streams_wait(tenant, stream, waits) &&
	    pool_call_begin_tight(tenant, pool, call, POOL_STEP))
		return true;
	freed_settle(tenant, NULL);

	bool is_idle = trim_all(tenant, waits);

	return pool_call_begin(tenant, pool, call) ||
	       (streams_wait(tenant, stream, waits) &&
		pool_call_begin_tight(tenant, pool, call, is_idle ? POOL_STEP : UINT64_MAX));
}

/* The capture may end before the driver comes to the allocation, which then takes its memory at
 * once; from a pool that is known. */
static int captured_begin(struct hook_call *call, struct tenant *tenant, int device, uint64_t bytes)
{
	int status = check_node(tenant, device, bytes);
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	struct tenant_pool *pool;

	if (status != CUDA_SUCCESS)
		return status;
	exchange_capture_mode(&mode);
	pool = find_current(tenant, device);
	exchange_capture_mode(&mode);
	if (pool != NULL)
		pool_unpin(pool);
	call->tenant = tenant;
	call->pool = NULL;
	return CUDA_SUCCESS;
}

static int begin_growth(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call,
			void *stream)
{
	void *context = NULL;

	if (pool_call_begin(tenant, pool, call))
		return CUDA_SUCCESS;
	/* Without a context there is nothing to wait for. */
	if (driver.cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != NULL &&
	    take_tight(tenant, pool, call, stream))
		return CUDA_SUCCESS;
	return refuse_in_stream(stream);
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

	void *context = NULL;
	bool is_charged = true;
	int device = tenant->has_one_device ? 0 : stream_device(stream, &context);

	if (device < 0)
		return CUDA_SUCCESS; /* no context: the driver says so itself */
	if (stream_is_captured(stream))
		return captured_begin(call, tenant, device, bytes);

	call->pool_call.bytes = bytes;
	call->pool_call.growth = 0;
	call->pool_call.waits = 0;
	call->is_of_device = !has_handle;
	call->selections = load_selections(tenant);
	call->pool = has_handle ? pool_of_handle(tenant, handle, &is_charged)
				: pool_of_device(tenant, device);
	if (call->pool == NULL)
		return is_charged ? refuse_in_stream(stream) : CUDA_SUCCESS;

	int status = begin_growth(tenant, call->pool, &call->pool_call, stream);

	if (status != CUDA_SUCCESS)
		pool_unpin(call->pool);
	else
		call->tenant = tenant;
	return status;
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

/* Whether the pool has no more than is granted now. What the driver has given past that, or from
 * elsewhere, the program has not seen: at once back with it. */
static bool settle_call(struct tenant *tenant, struct tenant_pool *pool, struct pool_call *call,
			int status, const uint64_t *out, bool elsewhere)
{
	bool is_granted = pool_call_end(tenant, pool, call) && !elsewhere;

	if (!is_granted && status == CUDA_SUCCESS) {
		int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
		int freed;

		exchange_capture_mode(&mode);
		freed = driver.cuMemFree_v2(*out);
		exchange_capture_mode(&mode);
		if (freed == CUDA_SUCCESS && !elsewhere)
			__atomic_add_fetch(&pool->undone, (call->bytes + PIECE - 1) / PIECE * PIECE,
					   __ATOMIC_SEQ_CST);
		trim(tenant, pool, 0);
		pool_settle(tenant, pool);
	}
	pool_turn_end(pool, call);
	return is_granted || status != CUDA_SUCCESS;
}

static bool is_any_past(struct tenant *tenant)
{
	for (uint32_t i = 0; i < pool_count(tenant); i++)
		if (!tenant->pool[i].is_graph && pool_is_past(&tenant->pool[i]))
			return true;
	return false;
}

/* Memory that was to be a node's: what was taken at once is counted, or goes back at once. A node's
 * own cannot be freed. */
static int captured_end(struct tenant *tenant, int status, const uint64_t *out)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	int waits = 0;

	pools_settle(tenant);
	if (status != CUDA_SUCCESS || !is_any_past(tenant))
		return status;
	exchange_capture_mode(&mode);
	if (driver.cuMemFree_v2(*out) == CUDA_SUCCESS) {
		status = CUDA_ERROR_OUT_OF_MEMORY;
		trim_all(tenant, &waits);
	}
	exchange_capture_mode(&mode);
	return status;
}

int pool_alloc_end(struct hook_call *call, int status, uint64_t *out, uint64_t bytes, void *stream,
		   bool is_thread)
{
	struct tenant *tenant = call->tenant;
	struct tenant_pool *pool = call->pool;

	if (tenant == NULL)
		return status;
	if (pool == NULL)
		return captured_end(tenant, status, out);

	bool elsewhere = is_elsewhere(tenant, call);

	if (!elsewhere && pool_call_leave(tenant, pool, &call->pool_call))
		return status;
	if (!settle_call(tenant, pool, &call->pool_call, status, out, elsewhere)) {
		/* Once more, from that pool, if there is room for the most that it can take. */
		status = CUDA_ERROR_OUT_OF_MEMORY;
		trim_all(tenant, &call->pool_call.waits);
		if (pool_call_begin(tenant, pool, &call->pool_call)) {
			if (stream == NULL && is_thread)
				stream = (void *)STREAM_PER_THREAD;
			status = driver.cuMemAllocFromPoolAsync(out, bytes, pool->handle, stream);
			if (!settle_call(tenant, pool, &call->pool_call, status, out, false))
				status = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	pool_unpin(pool);
	return status;
}

/* Memory of a managed pool goes to whichever card touches it, and only one card could be charged
 * for a pool. What lies where we know of no place is nobody's. */
static bool is_pool_known(int type, const struct cuda_location *location)
{
	return type != CU_MEM_ALLOCATION_TYPE_MANAGED &&
	       (location->type == CU_MEM_LOCATION_TYPE_DEVICE || is_on_host(location));
}

/* Also the ones that come with the driver. */
int pool_at_begin(const void *location, int type)
{
	return tenant_is_inert() || location == NULL || is_pool_known(type, location)
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_NOT_SUPPORTED;
}

/* The place comes first: memory of a pool that has none would not be counted. */
int pool_create_begin(struct hook_call *call, const void *out, const void *properties)
{
	const struct cuda_pool_properties *wanted = properties;
	struct tenant *tenant;
	enum tenant_state state = tenant_join(&tenant);

	call->tenant = NULL;
	if (state == TENANT_INERT || out == NULL || wanted == NULL)
		return CUDA_SUCCESS;

	int early = early_answer();

	if (early == CUDA_SUCCESS && is_on_host(&wanted->location) &&
	    wanted->type != CU_MEM_ALLOCATION_TYPE_MANAGED)
		return CUDA_SUCCESS;
	if (state == TENANT_REFUSED)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	if (early != CUDA_SUCCESS)
		return early;
	if (!is_pool_known(wanted->type, &wanted->location))
		return CUDA_ERROR_NOT_SUPPORTED;
	call->pool = add_pool(tenant, NULL, false, wanted->location.id);
	if (call->pool == NULL)
		return device_exists(wanted->location.id) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
	call->tenant = tenant;
	return CUDA_SUCCESS;
}

int pool_create_end(struct hook_call *call, int status, uint64_t handle)
{
	if (call->tenant == NULL)
		return status;
	__atomic_store_n(&call->pool->handle, (void *)(uintptr_t)handle, __ATOMIC_RELAXED);
	if (status == CUDA_SUCCESS)
		keep_all(call->pool, 0);
	__atomic_store_n(&call->pool->state,
			 status == CUDA_SUCCESS ? TENANT_POOL_LIVE : TENANT_POOL_ENDED,
			 __ATOMIC_SEQ_CST);
	pool_unpin(call->pool);
	return status;
}

/* Nobody may ask the driver about a pool that it destroys: from now on it is found no more, and
 * whoever is at it comes to an end. False: some thread does not. */
static bool end_pool(struct tenant_pool *pool)
{
	__atomic_store_n(&pool->state, TENANT_POOL_ENDED, __ATOMIC_SEQ_CST);
	for (int waits = 0; waits < END_WAITS; waits++) {
		if (pool_is_left(pool))
			return true;
		sys_sleep_ns(END_WAIT_NS);
	}
	return false;
}

/* What is freed and queued would count as left. */
static void wait_for_frees(struct tenant *tenant, struct tenant_pool *pool)
{
	uint64_t reserved;
	int waits = 0;

	trim(tenant, pool, 0);
	if (!pool_read_reserved(pool, &reserved) || reserved != 0)
		streams_wait(tenant, ALL_STREAMS, &waits);
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
	wait_for_frees(call->tenant, call->pool);
	pools_giving_begin(call->tenant);
	if (end_pool(call->pool)) {
		int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

		exchange_capture_mode(&mode);
		driver.cuMemPoolTrimTo(handle, 0);
		exchange_capture_mode(&mode);
		if (!pool_read_reserved(call->pool, &call->held))
			call->held = UINT64_MAX;
	}
	return CUDA_SUCCESS;
}

int pool_destroy_end(struct hook_call *call, int status)
{
	if (call->tenant == NULL)
		return status;
	pools_giving_end(call->tenant);
	forget_current(call->tenant);
	if (status == CUDA_SUCCESS) {
		pool_account_end(call->tenant, call->pool, call->held);
	} else {
		__atomic_store_n(&call->pool->state, TENANT_POOL_LIVE, __ATOMIC_SEQ_CST);
		pool_settle(call->tenant, call->pool);
	}
	pool_unpin(call->pool);
	return status;
}

static struct tenant *tenant_with_pools(void)
{
	struct tenant *tenant = tenant_joined();

	return tenant != NULL && pool_count(tenant) != 0 ? tenant : NULL;
}

int pools_begin(struct hook_call *call)
{
	call->giving = tenant_with_pools();
	if (call->giving != NULL)
		pools_giving_begin(call->giving);
	return CUDA_SUCCESS;
}

int pools_given_end(struct hook_call *call, int status)
{
	if (call->giving != NULL) {
		pools_giving_end(call->giving);
		pools_settle(call->giving);
	}
	return status;
}

/* Of a pool's memory cuMemFree is a free and a wait in one. It leaves the pool as large as it is:
 * the next trim gives back what it has freed (docs/benchmarks/libvgpu-memory.md). */
int pools_free_begin(struct hook_call *call)
{
	call->giving = tenant_with_pools();
	if (call->giving != NULL)
		call->waits_number = waits_enter(&call->giving->waits);
	return CUDA_SUCCESS;
}

int pools_freed_end(struct hook_call *call, int status)
{
	if (call->giving != NULL) {
		waits_leave(&call->giving->waits, call->waits_number);
		__atomic_store_n(&call->giving->plain_frees, 1, __ATOMIC_RELAXED);
		pools_waited(call->giving);
	}
	return status;
}

int pools_end(int status)
{
	struct tenant *tenant = tenant_joined();

	if (tenant == NULL)
		return status;
	freed_settle(tenant, NULL);
	pools_settle(tenant);
	return status;
}

/* What a trim leaves, others may have in use; whatever was counted before. */
static void trim_graphs(struct tenant *tenant, struct tenant_pool *pool, int *waits)
{
	uint32_t moment = graph_use_moment(pool);
	uint64_t reserved;

	trim_all(tenant, waits); /* also other pools may keep what nobody uses */
	if (pool_read_reserved(pool, &reserved))
		graph_use_recount(pool, moment, reserved);
}

bool graph_memory_charge(struct hook_call *call, struct tenant *tenant, void *stream)
{
	struct table_entry *graph = &call->graph;
	struct tenant_pool *pool = pool_of_graphs(tenant, (int)graph->card);
	uint64_t name = stream_name(stream);
	struct graph_use before;
	int waits = 0;

	if (pool == NULL)
		return false;
	for (int tries = 0; tries < 2; tries++) {
		if (tries != 0)
			trim_graphs(tenant, pool, &waits);
		call->pool_call =
			(struct pool_call){.bytes = GRAPH_BYTES(graph),
					   .others = graph_use_begin(pool, graph, name, &before)};
		/* What a launch takes past the limit cannot be undone: none follows it. */
		if (!pool_is_past(pool) && pool_call_begin(tenant, pool, &call->pool_call)) {
			call->pool = pool;
			streams_note(tenant, stream);
			return true;
		}
		graph_use_cancel(pool, graph, &before);
	}
	pool_unpin(pool);
	return false;
}

void graph_memory_settle(struct tenant *tenant, struct hook_call *call)
{
	if (call->pool == NULL)
		return;
	graph_use_end(call->pool);
	(void)pool_call_end(tenant, call->pool, &call->pool_call);
	pool_unpin(call->pool);
}

void graphs_forget_stream(struct tenant *tenant, uint64_t stream)
{
	for (uint32_t i = 0; i < pool_count(tenant); i++)
		if (tenant->pool[i].is_graph)
			graph_use_forget_stream(&tenant->pool[i], stream);
}

/* Whether the driver comes to look at the parameters. */
static bool is_node_read(const struct graph_place *place, const void *parameters)
{
	return place->out != NULL && place->graph != NULL && parameters != NULL &&
	       (place->dependencies != NULL || place->count == 0);
}

static int refuse_node(void *graph, const struct cuda_pool_properties *pool)
{
	const struct cuda_allocation_properties like = {
		.type = pool->type, .handle_types = pool->handle_types, .location = pool->location};
	size_t count = 0;
	int status = driver.cuGraphGetNodes(graph, NULL, &count);

	return status != CUDA_SUCCESS ? status : refuse_properties(&like, 0);
}

static int begin_node(struct hook_call *call, const struct graph_place *place,
		      const struct cuda_graph_alloc *node)
{
	struct tenant *tenant;
	enum tenant_state state = tenant_join(&tenant);

	call->tenant = NULL;
	if (state == TENANT_INERT || node->bytes == 0)
		return CUDA_SUCCESS;
	if (state == TENANT_REFUSED)
		return CUDA_ERROR_SYSTEM_NOT_READY;

	int device = device_of_graph(node);

	if (!is_pool_known(node->pool.type, &node->pool.location))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (device < 0 || !device_exists(device))
		return CUDA_SUCCESS;

	int status = check_node(tenant, device, node->bytes);

	return status == CUDA_ERROR_OUT_OF_MEMORY ? refuse_node(place->graph, &node->pool) : status;
}

int graph_node_begin(struct hook_call *call, const struct graph_place *place,
		     const void *parameters)
{
	int early = tenant_is_inert() ? CUDA_SUCCESS : early_answer();

	call->tenant = NULL;
	if (early != CUDA_SUCCESS || !is_node_read(place, parameters))
		return early;
	return begin_node(call, place, parameters);
}

int graph_any_node_begin(struct hook_call *call, const struct graph_place *place,
			 const void *parameters)
{
	const struct cuda_graph_node *node = parameters;
	int early = tenant_is_inert() ? CUDA_SUCCESS : early_answer();

	call->tenant = NULL;
	if (early != CUDA_SUCCESS || !is_node_read(place, parameters))
		return early;
	return node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? begin_node(call, place, &node->alloc)
							  : CUDA_SUCCESS;
}
