// SPDX-License-Identifier: Apache-2.0
/* Local memory of kernels. A context keeps room for every thread that its card can run at once:
 * the largest bytes a thread that it has needed so far × multiprocessors × threads of one. It
 * comes with 1 KiB a thread, which is part of what a context costs; a kernel that needs more makes
 * it grow at its first launch, by gigabytes, and it stays grown. So the growth is charged before
 * the launch. Measured on an H100 with drivers of CUDA 13.0, exact to the MiB. */
#include "hook_local.h"

#include "sys.h"

/* Read by every launch: kernels and the units of local memory that they need. A word holds the
 * address in its upper 48 bits; two kernels of one place displace each other. */
uint64_t local_known[LOCAL_PLACES];

static void lock_local(struct tenant *tenant)
{
	while (__atomic_exchange_n(&tenant->local_locked, 1, __ATOMIC_ACQUIRE) != 0)
		sys_yield();
}

static void unlock_local(struct tenant *tenant)
{
	__atomic_store_n(&tenant->local_locked, 0, __ATOMIC_RELEASE);
}

/* Under the lock. Launches ask no further where the process has one context only, which is nearly
 * always: then what that one has room for is enough to know. */
static void set_room(const struct tenant *tenant)
{
	uint64_t bytes = LOCAL_FIRST_BYTES;
	unsigned int grown = 0;

	for (unsigned int i = 0; i < TENANT_MAX_LOCALS; i++) {
		if (tenant->local[i].context == 0)
			continue;
		bytes = tenant->local[i].settled;
		grown++;
	}
	if (grown != 1 || tenant->contexts != 1)
		bytes = LOCAL_FIRST_BYTES;
	/* Rounded down: the kernels' needs are rounded up. */
	__atomic_store_n(&launch_words.room, bytes / LOCAL_UNIT_BYTES, __ATOMIC_RELAXED);
	__atomic_store_n(&launch_words.contexts, tenant->contexts, __ATOMIC_RELAXED);
}

static void remember(const void *function, uint64_t bytes)
{
	uint64_t address = (uint64_t)(uintptr_t)function;
	uint64_t units = LOCAL_UNITS(bytes);

	if (address >> 48 == 0 && units <= UINT16_MAX)
		__atomic_store_n(&local_known[local_place(function)], address << 16 | units,
				 __ATOMIC_RELAXED);
}

/* Kernels' handles may be given anew, to others. */
void local_forget_kernels(void)
{
	for (unsigned int i = 0; i < LOCAL_PLACES; i++)
		if (__atomic_load_n(&local_known[i], __ATOMIC_RELAXED) != 0)
			__atomic_store_n(&local_known[i], 0, __ATOMIC_RELAXED);
}

int local_unload_end(int status)
{
	local_forget_kernels();
	return status;
}

/* Multiprocessors × threads of one; 0 if the driver does not say. */
static uint64_t threads_of(struct tenant *tenant, int device)
{
	uint64_t *known = device < TENANT_MAX_ORDINALS ? &tenant->threads_of_ordinal[device] : NULL;
	uint64_t threads = known == NULL ? 0 : __atomic_load_n(known, __ATOMIC_RELAXED);
	int processors = 0;
	int of_one = 0;

	if (threads != 0)
		return threads;
	if (driver.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
					device) != CUDA_SUCCESS ||
	    driver.cuDeviceGetAttribute(&of_one, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
					device) != CUDA_SUCCESS)
		return 0;
	threads = (uint64_t)processors * (uint64_t)of_one;
	if (known != NULL)
		__atomic_store_n(known, threads, __ATOMIC_RELAXED);
	return threads;
}

/* False: the driver does not say. It is no kernel, and the driver says so itself, or it may say so
 * the next time. */
static bool ask_bytes(void *function, uint64_t *local_bytes)
{
	int device;
	int bytes = 0;
	int relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	bool is_known = true;

	/* The question may load the kernel, which a capture of another thread would not survive. */
	driver.cuThreadExchangeStreamCaptureMode(&relaxed);
	if (driver.cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function) !=
		    CUDA_SUCCESS &&
	    (driver.cuKernelGetAttribute == NULL ||
	     driver.cuCtxGetDevice(&device) != CUDA_SUCCESS ||
	     driver.cuKernelGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function,
					 device) != CUDA_SUCCESS))
		is_known = false;
	driver.cuThreadExchangeStreamCaptureMode(&relaxed);
	*local_bytes = !is_known || bytes < 0 ? 0 : (uint64_t)bytes;
	return is_known;
}

uint64_t local_bytes_of(void *function)
{
	uint64_t bytes;

	(void)ask_bytes(function, &bytes);
	return bytes;
}

static struct tenant_local *find(struct tenant *tenant, uint64_t context)
{
	for (unsigned int i = 0; i < TENANT_MAX_LOCALS; i++)
		if (tenant->local[i].context == context)
			return &tenant->local[i];
	return NULL;
}

static struct tenant_local *find_or_add(struct tenant *tenant, uint64_t context, uint32_t card,
					uint64_t threads)
{
	struct tenant_local *local = find(tenant, context);

	if (local != NULL)
		return local;
	local = find(tenant, 0);
	if (local != NULL)
		*local = (struct tenant_local){.context = context,
					       .threads = threads,
					       .charged = LOCAL_FIRST_BYTES,
					       .settled = LOCAL_FIRST_BYTES,
					       .card = card};
	return local;
}

enum growth {
	GROWTH_NONE,
	GROWTH_CHARGED,
	GROWTH_REFUSED,
};

static enum growth try_to_grow(struct tenant *tenant, uint64_t context, uint32_t card,
			       uint64_t threads, uint64_t bytes)
{
	enum growth growth = GROWTH_NONE;

	lock_local(tenant);

	struct tenant_local *local = find_or_add(tenant, context, card, threads);
	uint64_t more = 0;

	if (local == NULL || __builtin_mul_overflow(bytes, threads, &more)) {
		growth = GROWTH_REFUSED;
	} else if (bytes > local->charged) {
		more -= local->charged * threads;
		growth =
			quota_reserve(&tenant->quota, card, more) ? GROWTH_CHARGED : GROWTH_REFUSED;
		if (growth == GROWTH_CHARGED)
			local->charged = bytes;
	} else if (bytes > local->settled) {
		growth = GROWTH_CHARGED; /* by a call that is not over yet */
	}
	if (growth == GROWTH_CHARGED)
		local->calls++;
	unlock_local(tenant);
	return growth;
}

int local_begin(struct hook_call *call, struct tenant *tenant, void *stream, uint64_t bytes)
{
	void *context;
	int device = bytes <= LOCAL_FIRST_BYTES ? -1 : stream_device(stream, &context);

	call->tenant = NULL;
	if (device < 0)
		return CUDA_SUCCESS; /* no more than every context has, or no context */

	int card = device_card(tenant, device);
	uint64_t threads = threads_of(tenant, device);

	if (card < 0)
		return refuse_memory();

	uint64_t key = (uint64_t)(uintptr_t)context;
	enum growth growth = try_to_grow(tenant, key, (uint32_t)card, threads, bytes);

	if (growth == GROWTH_REFUSED && pools_trim_for(tenant))
		growth = try_to_grow(tenant, key, (uint32_t)card, threads, bytes);
	if (growth == GROWTH_REFUSED)
		return refuse_memory();
	if (growth == GROWTH_CHARGED) {
		call->tenant = tenant;
		call->entry.owner = key;
		call->entry.bytes = bytes;
	}
	return CUDA_SUCCESS;
}

/* What no call has made true is taken back when the last call that hoped for it is over. */
static void shrink(struct tenant *tenant, struct tenant_local *local)
{
	if (local->calls != 0 || local->charged == local->settled)
		return;
	quota_release(&tenant->quota, local->card,
		      (local->charged - local->settled) * local->threads);
	local->charged = local->settled;
}

int local_end(struct hook_call *call, int status)
{
	struct tenant *tenant = call->tenant;

	if (tenant == NULL)
		return status;
	lock_local(tenant);

	struct tenant_local *local = find(tenant, call->entry.owner);

	/* Gone with its context, under the feet of the call. */
	if (local != NULL) {
		local->calls -= local->calls != 0;
		if (status == CUDA_SUCCESS && call->entry.bytes > local->settled)
			local->settled = call->entry.bytes;
		shrink(tenant, local);
		set_room(tenant);
	}
	unlock_local(tenant);
	return status;
}

void local_context_made(struct tenant *tenant)
{
	lock_local(tenant);
	tenant->contexts++;
	set_room(tenant);
	unlock_local(tenant);
}

void local_context_gone(struct tenant *tenant, uint64_t context)
{
	lock_local(tenant);

	struct tenant_local *local = find(tenant, context);

	tenant->contexts--;
	if (context != 0 && local != NULL) {
		quota_release(&tenant->quota, local->card,
			      (local->charged - LOCAL_FIRST_BYTES) * local->threads);
		*local = (struct tenant_local){0};
	}
	set_room(tenant);
	unlock_local(tenant);
	local_forget_kernels();
	if (context != 0)
		gate_forget_context(context);
}

/* Whether the launch only becomes a node of a graph; hook_graph.c charges when that is launched. */
static bool is_captured(void *stream)
{
	int status = 0;

	return driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != 0;
}

/* Charges the local memory that a kernel needs, once; `tenant` is NULL where nothing is enforced.
 */
static int charge_kernel(struct hook_call *call, void *function, void *stream,
			 struct tenant **tenant)
{
	enum tenant_state state = tenant_join(tenant);

	if (state == TENANT_INERT) {
		launch_is_inert();
		remember(function, 0);
		*tenant = NULL;
		return CUDA_SUCCESS;
	}
	if (state == TENANT_REFUSED)
		return CUDA_ERROR_SYSTEM_NOT_READY;

	uint64_t bytes;

	if (ask_bytes(function, &bytes))
		remember(function, bytes);
	return bytes <= LOCAL_FIRST_BYTES || is_captured(stream)
		       ? CUDA_SUCCESS
		       : local_begin(call, *tenant, stream, bytes);
}

static int begin(struct hook_call *call, void *function, struct launch launch, void *stream)
{
	struct tenant *tenant = tenant_joined();
	int status = CUDA_SUCCESS;

	call->tenant = NULL;
	call->gate = NULL;
	if (function == NULL)
		return CUDA_SUCCESS;
	if (tenant == NULL || !launch_is_known(function))
		status = charge_kernel(call, function, stream, &tenant);
	if (status == CUDA_SUCCESS && tenant != NULL && !launch_is_free())
		gate_begin(call, tenant, launch, stream);
	return status;
}

int launch_begin(struct hook_call *call, void *function, const uint32_t *grid_and_block,
		 void *stream, bool is_thread)
{
	return begin(call, function, (struct launch){.key = launch_key(function, grid_and_block)},
		     launch_stream(stream, is_thread));
}

int launch_end(struct hook_call *call, int status)
{
	gate_end(call);
	return local_end(call, status);
}

int launch_config_begin(struct hook_call *call, const void *config, void *function, bool is_thread)
{
	const struct cuda_launch_config *launch = config;

	call->tenant = NULL;
	call->gate = NULL;
	if (launch == NULL || function == NULL)
		return CUDA_SUCCESS;
	if (tenant_is_inert()) /* the driver may not come to look at it */
		return begin(call, function, (struct launch){.key = 0}, NULL);

	int early = tenant_joined() != NULL ? CUDA_SUCCESS : early_answer();

	if (early != CUDA_SUCCESS)
		return early;
	return begin(call, function,
		     (struct launch){.key = launch_config_key(launch, function),
				     .is_dependent = launch_is_dependent(launch)},
		     launch_stream(launch->stream, is_thread));
}

/* One kernel a card, which wait for each other: all are charged, or the call is refused. */
int launch_many_begin(struct hook_call *call, const void *list, unsigned int count)
{
	const struct cuda_launch *launches = list;
	int early = tenant_is_inert() ? CUDA_SUCCESS : early_answer();

	call->tenant = NULL;
	if (early != CUDA_SUCCESS)
		return early;
	for (unsigned int i = 0; launches != NULL && i < count; i++) {
		struct hook_call one;
		int status = launch_begin(&one, launches[i].function, launches[i].grid_and_block,
					  launches[i].stream, false);

		local_end(&one, status);
		if (status != CUDA_SUCCESS)
			return status;
	}
	return CUDA_SUCCESS;
}

/* The stack of a thread lies in the same memory. More takes it at once; back to what a context
 * begins with gives back everything, also what kernels have needed (measured). */
int context_limit_begin(struct hook_call *call, int limit, uint64_t bytes)
{
	struct tenant *tenant = tenant_joined();
	int status = CUDA_SUCCESS;

	call->tenant = NULL;
	if (limit == CU_LIMIT_STACK_SIZE && tenant != NULL)
		status = local_begin(call, tenant, NULL, bytes);
	return status == CUDA_ERROR_OUT_OF_MEMORY && bytes >= LOCAL_TOO_MANY_BYTES
		       ? CUDA_ERROR_INVALID_VALUE
		       : status;
}

int context_limit_end(struct hook_call *call, int status, int limit, uint64_t bytes)
{
	struct tenant *tenant = tenant_joined();
	void *context;

	if (tenant == NULL || status != CUDA_SUCCESS || limit != CU_LIMIT_STACK_SIZE ||
	    bytes > LOCAL_FIRST_BYTES || stream_device(NULL, &context) < 0)
		return local_end(call, status);
	lock_local(tenant);

	struct tenant_local *local = find(tenant, (uint64_t)(uintptr_t)context);

	if (local != NULL) {
		local->settled = LOCAL_FIRST_BYTES;
		shrink(tenant, local);
		set_room(tenant);
	}
	unlock_local(tenant);
	return status;
}
