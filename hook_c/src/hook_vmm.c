// SPDX-License-Identifier: Apache-2.0
/* Memory of cuMemCreate. It lives while a handle or a mapping of it lives: programs release the
 * handle right after they have mapped it, or keep it long after they have unmapped it. Handles are
 * numbers that the driver uses again while an old object is still mapped, so an object has a number
 * of our own, to which its handles and mappings point. */
#include "hook.h"

#define NO_OBJECT 0 /* none has this number */

/* One handle or mapping of the object is gone. */
void object_drop(struct tenant *tenant, uint64_t object)
{
	struct table_entry entry;

	if (table_refer(&tenant->table, TABLE_OBJECT, object, -1, &entry) && entry.refs == 0)
		quota_release(&tenant->quota, entry.card, entry.bytes);
}

int object_create_begin(struct hook_call *call, const void *out, uint64_t bytes,
			const void *properties, uint64_t flags)
{
	const struct cuda_allocation_properties *wanted = properties;
	struct tenant *tenant;
	enum tenant_state state = tenant_join(&tenant);

	call->tenant = NULL;
	if (state == TENANT_INERT || out == NULL || bytes == 0 || wanted == NULL)
		return CUDA_SUCCESS;

	int early = early_answer();

	if (early == CUDA_SUCCESS && is_on_host(&wanted->location))
		return CUDA_SUCCESS;
	if (state == TENANT_REFUSED)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	if (early != CUDA_SUCCESS)
		return early;
	if (wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE; /* some memory of a card, perhaps: nobody's */
	if (!device_exists(wanted->location.id))
		return CUDA_SUCCESS;

	/* The device of the memory, whatever context is current: there may be none. */
	int card = device_card(tenant, wanted->location.id);

	if (card < 0 || !pools_reserve(tenant, (uint32_t)card, bytes))
		return flags != 0 ? CUDA_ERROR_INVALID_VALUE : refuse_properties(wanted, bytes);
	call->tenant = tenant;
	call->entry = (struct table_entry){
		.kind = TABLE_OBJECT, .bytes = bytes, .card = (uint32_t)card, .refs = 1};
	return CUDA_SUCCESS;
}

int object_create_end(struct hook_call *call, int status, uint64_t handle)
{
	struct tenant *tenant = call->tenant;

	if (tenant == NULL)
		return status;
	if (status != CUDA_SUCCESS) {
		quota_release(&tenant->quota, call->entry.card, call->entry.bytes);
		return status;
	}
	call->entry.handle = __atomic_add_fetch(&tenant->last_object, 1, __ATOMIC_RELAXED);

	struct table_entry by_handle = {.kind = TABLE_HANDLE,
					.handle = handle,
					.owner = call->entry.handle,
					.bytes = call->entry.bytes,
					.refs = 1};

	/* Not recorded, for want of memory: it stays charged until the process ends. */
	if (table_put(&tenant->table, &call->entry))
		(void)table_put(&tenant->table, &by_handle);
	return status;
}

int object_release_begin(struct hook_call *call, uint64_t handle)
{
	call->tenant = tenant_joined();
	if (call->tenant != NULL &&
	    !table_refer(&call->tenant->table, TABLE_HANDLE, handle, -1, &call->entry))
		call->tenant = NULL;
	return CUDA_SUCCESS;
}

int object_release_end(struct hook_call *call, int status)
{
	struct tenant *tenant = call->tenant;
	struct table_entry unused;

	if (tenant == NULL)
		return status;
	if (status == CUDA_SUCCESS) {
		object_drop(tenant, call->entry.owner);
	} else if (!table_refer(&tenant->table, TABLE_HANDLE, call->entry.handle, 1, &unused)) {
		call->entry.refs = 1;
		(void)table_put(&tenant->table, &call->entry);
	}
	return status;
}

int object_retain_end(int status, uint64_t handle, uint64_t address)
{
	struct tenant *tenant = tenant_joined();
	struct table_entry mapping;
	struct table_entry unused;

	if (tenant == NULL || status != CUDA_SUCCESS ||
	    !table_find_range(&tenant->table, TABLE_MAPPING, address, &mapping) ||
	    !table_refer(&tenant->table, TABLE_OBJECT, mapping.owner, 1, &unused))
		return status;
	/* The driver may give the number of a handle that is still out, or a new one. */
	if (!table_refer(&tenant->table, TABLE_HANDLE, handle, 1, &unused)) {
		struct table_entry by_handle = {.kind = TABLE_HANDLE,
						.handle = handle,
						.owner = mapping.owner,
						.bytes = mapping.bytes,
						.refs = 1};

		(void)table_put(&tenant->table, &by_handle);
	}
	return status;
}

/* The reference is taken before the call: the handle may be released while it runs. */
int object_map_begin(struct hook_call *call, uint64_t address, uint64_t bytes, uint64_t handle)
{
	struct table_entry found;
	struct table_entry unused;

	call->tenant = tenant_joined();
	if (call->tenant == NULL)
		return CUDA_SUCCESS;
	/* Also what is not charged is recorded: a range that is unmapped may begin with it. */
	if (!table_refer(&call->tenant->table, TABLE_HANDLE, handle, 0, &found) ||
	    !table_refer(&call->tenant->table, TABLE_OBJECT, found.owner, 1, &unused))
		found.owner = NO_OBJECT;
	call->entry = (struct table_entry){
		.kind = TABLE_MAPPING, .handle = address, .bytes = bytes, .owner = found.owner};
	return CUDA_SUCCESS;
}

int object_map_end(struct hook_call *call, int status)
{
	struct tenant *tenant = call->tenant;

	if (tenant == NULL)
		return status;
	if (status != CUDA_SUCCESS)
		object_drop(tenant, call->entry.owner);
	else
		(void)table_put(&tenant->table, &call->entry);
	return status;
}

/* The range may hold several mappings. The first is taken before the call, so that another thread
 * that maps at the same address at once is not forgotten; it is put back if the driver refuses. */
int object_unmap_begin(struct hook_call *call, uint64_t address, uint64_t bytes)
{
	call->tenant = tenant_joined();
	if (call->tenant == NULL)
		return CUDA_SUCCESS;
	if (!table_take(&call->tenant->table, TABLE_MAPPING, address, &call->entry)) {
		call->tenant = NULL;
	} else if (call->entry.bytes > bytes) {
		(void)table_put(&call->tenant->table, &call->entry); /* the driver will refuse */
		call->tenant = NULL;
	}
	return CUDA_SUCCESS;
}

int object_unmap_end(struct hook_call *call, int status, uint64_t address, uint64_t bytes)
{
	struct tenant *tenant = call->tenant;
	struct table_entry entry = call->entry;
	uint64_t end = address + bytes;

	if (tenant == NULL)
		return status;
	if (status != CUDA_SUCCESS) {
		(void)table_put(&tenant->table, &entry);
		return status;
	}
	do {
		object_drop(tenant, entry.owner);
		address += entry.bytes;
	} while (address < end && table_take(&tenant->table, TABLE_MAPPING, address, &entry));
	return status;
}
