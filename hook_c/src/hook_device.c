// SPDX-License-Identifier: Apache-2.0
/* cuInit, contexts, and what the driver says about a device's memory. */
#include "hook_local.h"

#include "log.h"

#include <string.h>

/* The card's own UUID, a MIG instance's own where there is one. */
static bool read_uuid(int device, uint8_t uuid[16])
{
	if (driver.cuDeviceGetUuid_v2 != NULL)
		return driver.cuDeviceGetUuid_v2(uuid, device) == CUDA_SUCCESS;
	return driver.cuDeviceGetUuid != NULL &&
	       driver.cuDeviceGetUuid(uuid, device) == CUDA_SUCCESS;
}

static int find_card(const struct tenant *tenant, int device)
{
	uint8_t uuid[16];

	if (tenant_is_developer())
		return device >= 0 && device < VGPU_MAX_DEVICES ? device : CARD_NOT_PROMISED;
	return read_uuid(device, uuid) ? limits_find(&tenant->limits, uuid) : CARD_UNKNOWN;
}

int device_card(struct tenant *tenant, int device)
{
	if (device < 0 || device >= TENANT_MAX_ORDINALS)
		return find_card(tenant, device);

	uint32_t *known = &tenant->card_of_ordinal[device];
	uint32_t value = __atomic_load_n(known, __ATOMIC_RELAXED);

	if (value != 0)
		return (int)value - 2;

	int card = find_card(tenant, device);

	if (card != CARD_UNKNOWN)
		__atomic_store_n(known, (uint32_t)(card + 2), __ATOMIC_RELAXED);
	return card;
}

int device_now(const struct tenant *tenant)
{
	int device = -1;

	if (__atomic_load_n(&tenant->has_one_device, __ATOMIC_RELAXED) != 0)
		return 0;
	return driver.cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : -1;
}

int stream_device(void *stream, void **context)
{
	void *current = NULL;
	int device = -1;

	*context = NULL;
	driver.cuCtxGetCurrent(&current);
	if ((uintptr_t)stream <= STREAM_PER_THREAD ||
	    driver.cuStreamGetCtx(stream, context) != CUDA_SUCCESS || *context == NULL)
		*context = current;
	if (*context == current || driver.cuCtxPushCurrent_v2(*context) != CUDA_SUCCESS)
		return driver.cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : -1;
	if (driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)
		device = -1;
	driver.cuCtxPopCurrent_v2(&current);
	return device;
}

static int refuse_init(struct tenant *tenant)
{
	log_refusal(&tenant->reason);
	return CUDA_ERROR_SYSTEM_NOT_READY;
}

int init_begin(struct hook_call *call)
{
	switch (tenant_join(&call->tenant)) {
	case TENANT_INERT:
		call->tenant = NULL;
		break;
	case TENANT_REFUSED:
		return refuse_init(call->tenant);
	case TENANT_ENFORCED:
		if (__atomic_exchange_n(&driver_unpatched, 0, __ATOMIC_RELAXED) != 0)
			log_warning("the driver's symbol table is as it was: past dlsym it is not "
				    "limited");
		break;
	}
	return CUDA_SUCCESS;
}

/* A card that is not promised has no memory for this process. If there is no other, say so here:
 * a failing cuInit is understood sooner than a card without memory. */
int init_end(struct hook_call *call, int status)
{
	bool is_known = true;
	int count = 0;

	if (call->tenant == NULL || status != CUDA_SUCCESS ||
	    driver.cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0)
		return status;
	__atomic_store_n(&call->tenant->has_one_device, count == 1, __ATOMIC_RELAXED);
	for (int device = 0; device < count; device++) {
		int card = device_card(call->tenant, device);

		if (card >= 0)
			return status;
		is_known &= card != CARD_UNKNOWN;
	}
	if (is_known) {
		explain(&call->tenant->reason,
			"no card that is visible here is named in the limits file");
		tenant_refuse(call->tenant);
	} else {
		explain(&call->tenant->reason, "the driver does not tell the cards' UUIDs");
	}
	return refuse_init(call->tenant);
}

static uint64_t minimum(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* The first versions of these functions write 32 bits. */
static uint64_t load_width(const void *number, size_t width)
{
	uint32_t narrow;
	uint64_t wide;

	if (width == sizeof(narrow)) {
		memcpy(&narrow, number, sizeof(narrow));
		return narrow;
	}
	memcpy(&wide, number, sizeof(wide));
	return wide;
}

static void store_width(void *number, size_t width, uint64_t value)
{
	uint32_t narrow = (uint32_t)minimum(value, UINT32_MAX);

	if (width == sizeof(narrow))
		memcpy(number, &narrow, sizeof(narrow));
	else
		memcpy(number, &value, sizeof(value));
}

/* Limit and use of a card; nothing of either for a card that was not promised. */
static struct quota_view look_at(struct tenant *tenant, int card)
{
	const struct quota_view nothing = {0};

	return card < 0 ? nothing : quota_look(&tenant->quota, (unsigned int)card);
}

int memory_info_end(int status, void *free_bytes, void *total_bytes, size_t width)
{
	struct tenant *tenant;

	if (status != CUDA_SUCCESS || free_bytes == NULL || total_bytes == NULL ||
	    tenant_open(&tenant) != TENANT_ENFORCED)
		return status;

	int device = device_now(tenant);

	if (device < 0)
		return status;

	if (tenant_joined() != NULL)
		freed_settle(tenant, NULL);

	struct quota_view view = look_at(tenant, device_card(tenant, device));
	uint64_t total = minimum(load_width(total_bytes, width), view.limit_bytes);
	uint64_t left = total - minimum(total, view.used_bytes);

	store_width(free_bytes, width, minimum(load_width(free_bytes, width), left));
	store_width(total_bytes, width, total);
	return status;
}

int total_memory_end(int status, void *total_bytes, size_t width, int device)
{
	struct tenant *tenant;

	if (status != CUDA_SUCCESS || total_bytes == NULL ||
	    tenant_open(&tenant) != TENANT_ENFORCED)
		return status;

	struct quota_view view = look_at(tenant, device_card(tenant, device));

	store_width(total_bytes, width, minimum(load_width(total_bytes, width), view.limit_bytes));
	return status;
}

/* A context costs memory that no call asks for. Its price is measured by the agent; where it is
 * not, what contexts take is part of the overhead that the agent publishes. */
static int charge_context(struct hook_call *call, int device)
{
	call->tenant = NULL;

	struct tenant *tenant;
	enum tenant_state state = tenant_join(&tenant);

	if (state == TENANT_INERT)
		return CUDA_SUCCESS;
	if (state == TENANT_REFUSED)
		return CUDA_ERROR_SYSTEM_NOT_READY;

	int early = early_answer();
	int card = device_card(tenant, device);

	if (early != CUDA_SUCCESS)
		return early;
	if (card < 0)
		return device_exists(device) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;

	limits_refresh(&tenant->limits);

	uint64_t bytes = limits_load(&tenant->limits.card[card].context_bytes);

	if (bytes != 0 && !pools_reserve(tenant, (uint32_t)card, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	call->tenant = tenant;
	call->entry = (struct table_entry){
		.kind = TABLE_CONTEXT, .bytes = bytes, .card = (uint32_t)card, .refs = 1};
	return CUDA_SUCCESS;
}

int context_create_begin(struct hook_call *call, const void *out, int device)
{
	call->tenant = NULL;
	return out == NULL ? CUDA_SUCCESS : charge_context(call, device);
}

int context_create_end(struct hook_call *call, int status, uint64_t context)
{
	if (call->tenant == NULL)
		return status;
	call->entry.handle = context;
	if (status != CUDA_SUCCESS) {
		quota_release(&call->tenant->quota, call->entry.card, call->entry.bytes);
		return status;
	}
	/* Not recorded, for want of memory: it stays charged until the process ends. */
	(void)table_put(&call->tenant->table, &call->entry);
	local_context_made(call->tenant);
	return status;
}

int context_destroy_end(int status, uint64_t context)
{
	struct tenant *tenant = tenant_joined();
	struct table_entry entry;

	if (tenant == NULL || status != CUDA_SUCCESS)
		return status;
	memory_forget_context(tenant, context);
	if (table_take(&tenant->table, TABLE_CONTEXT, context, &entry)) {
		quota_release(&tenant->quota, entry.card, entry.bytes);
		local_context_gone(tenant, context);
	}
	return status;
}

/* The old way to share a context: it ends with the last who lets go. */
int context_attach_end(int status, uint64_t context)
{
	struct tenant *tenant = tenant_joined();
	struct table_entry entry;

	if (tenant != NULL && status == CUDA_SUCCESS)
		(void)table_refer(&tenant->table, TABLE_CONTEXT, context, 1, &entry);
	return status;
}

int context_detach_end(int status, uint64_t context)
{
	struct tenant *tenant = tenant_joined();
	struct table_entry entry;

	if (tenant == NULL || status != CUDA_SUCCESS ||
	    !table_refer(&tenant->table, TABLE_CONTEXT, context, -1, &entry) || entry.refs != 0)
		return status;
	memory_forget_context(tenant, context);
	quota_release(&tenant->quota, entry.card, entry.bytes);
	local_context_gone(tenant, context);
	return status;
}

static bool primary_is_active(int device)
{
	unsigned int flags;
	int active = 0;

	return driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS &&
	       active != 0;
}

/* A primary context is counted by the driver: the first retain makes it, later ones share it. */
int primary_retain_begin(struct hook_call *call, const void *out, int device)
{
	struct tenant *tenant;

	call->tenant = NULL;
	if (tenant_is_inert() || out == NULL)
		return CUDA_SUCCESS;
	if (tenant_join(&tenant) == TENANT_REFUSED)
		return CUDA_ERROR_SYSTEM_NOT_READY;

	int card = device_card(tenant, device);

	/* Of threads that come at the same time, one charges. */
	if (card >= 0 &&
	    (primary_is_active(device) ||
	     __atomic_exchange_n(&tenant->primary[card].charged, 1, __ATOMIC_ACQ_REL) != 0))
		return CUDA_SUCCESS;

	int status = charge_context(call, device);

	if (card >= 0 && status != CUDA_SUCCESS)
		__atomic_store_n(&tenant->primary[card].charged, 0, __ATOMIC_RELEASE);
	return status;
}

int primary_retain_end(struct hook_call *call, int status, uint64_t context)
{
	if (call->tenant == NULL)
		return status;

	struct tenant_primary *primary = &call->tenant->primary[call->entry.card];

	if (status == CUDA_SUCCESS) {
		primary->bytes = call->entry.bytes;
		primary->context = context;
		local_context_made(call->tenant);
	} else {
		quota_release(&call->tenant->quota, call->entry.card, call->entry.bytes);
		__atomic_store_n(&primary->charged, 0, __ATOMIC_RELEASE);
	}
	return status;
}

int primary_release_end(int status, int device)
{
	struct tenant *tenant = tenant_joined();

	if (tenant == NULL || status != CUDA_SUCCESS || primary_is_active(device))
		return status;

	int card = device_card(tenant, device);

	if (card < 0)
		return status;

	struct tenant_primary *primary = &tenant->primary[card];
	struct tenant_primary old = *primary;

	if (__atomic_exchange_n(&primary->charged, 0, __ATOMIC_ACQ_REL) != 0) {
		memory_forget_context(tenant, old.context);
		quota_release(&tenant->quota, (unsigned int)card, old.bytes);
		local_context_gone(tenant, old.context);
	}
	return status;
}
