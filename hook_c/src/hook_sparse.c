// SPDX-License-Identifier: Apache-2.0
/* Parts of sparse arrays. An object of cuMemCreate that is mapped to one lives as long as it is,
 * and programs release its handle right away. Mapping and unmapping come in the order of a stream:
 * what is unmapped stays charged until the stream has come to it. A part is known again if it is
 * unmapped as it was mapped; what is not stays charged until its array is destroyed. So does what a
 * call that the driver refused may have mapped before it did. */
#include "hook.h"

#include "sys.h"

/* What one entry of the program's list does to the account. */
struct change {
	uint64_t mapped;   /* the object, with a reference for it */
	uint64_t unmapped; /* that was there before */
};

static uint64_t mix(uint64_t number, uint64_t value)
{
	number = ((number ^ value) + 1) * UINT64_C(0x9e3779b97f4a7c15);
	return number ^ number >> 29;
}

static uint64_t number_of_part(const struct cuda_array_map *map)
{
	bool is_tail = map->part_type == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
	uint64_t number = mix((uint64_t)(uintptr_t)map->resource, is_tail);

	number = mix(number, is_tail ? (uint32_t)map->part[0] : map->part[0]);
	number = mix(number, map->part[1]);
	number = mix(number, map->part[2]);
	return is_tail ? number : mix(number, map->part[3]);
}

/* The reference is taken before the call: the handle may be released while it runs. */
static uint64_t refer(struct tenant *tenant, uint64_t handle)
{
	struct table_entry found;
	struct table_entry unused;

	return table_refer(&tenant->table, TABLE_HANDLE, handle, 0, &found) &&
			       table_refer(&tenant->table, TABLE_OBJECT, found.owner, 1, &unused)
		       ? found.owner
		       : 0;
}

int object_map_array_begin(struct hook_call *call, const void *list, unsigned int count)
{
	const struct cuda_array_map *maps = list;
	struct tenant *tenant = tenant_joined();
	void *context = NULL;

	call->tenant = NULL;
	if (tenant == NULL || maps == NULL || count == 0)
		return CUDA_SUCCESS;
	if (driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == NULL)
		return CUDA_SUCCESS; /* the driver does not look at the list either */

	struct change *changes = sys_map(count * sizeof(*changes), PROT_READ | PROT_WRITE, -1);

	if (changes == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned int i = 0; i < count; i++)
		if (maps[i].operation == CU_MEM_OPERATION_TYPE_MAP)
			changes[i].mapped = refer(tenant, maps[i].handle);
	call->tenant = tenant;
	call->held = (uint64_t)(uintptr_t)changes;
	return CUDA_SUCCESS;
}

static void note_mapped(struct tenant *tenant, const struct cuda_array_map *map,
			struct change *change, bool is_done)
{
	struct table_entry tile = {.kind = TABLE_TILE,
				   .handle = number_of_part(map),
				   .bytes = (uint64_t)(uintptr_t)map->resource,
				   .owner = change->mapped};
	struct table_entry old;

	if (table_take(&tenant->table, TABLE_TILE, tile.handle, &old)) {
		if (is_done) {
			change->unmapped = old.owner;
		} else { /* either may be there now: both count */
			(void)table_put(&tenant->table, &old);
			tile.handle =
				~__atomic_add_fetch(&tenant->last_object, 1, __ATOMIC_RELAXED);
		}
	}
	__atomic_store_n(&tenant->tiles, 1, __ATOMIC_RELEASE);
	/* Not recorded, for want of memory: it stays charged until the process ends. */
	(void)table_put(&tenant->table, &tile);
}

static void note_unmapped(struct tenant *tenant, const struct cuda_array_map *map,
			  struct change *change)
{
	struct table_entry old;

	if (table_take(&tenant->table, TABLE_TILE, number_of_part(map), &old))
		change->unmapped = old.owner;
}

int object_map_array_end(struct hook_call *call, int status, const void *list, unsigned int count,
			 void *stream, bool is_thread)
{
	const struct cuda_array_map *maps = list;
	struct tenant *tenant = call->tenant;
	bool is_done = status == CUDA_SUCCESS;

	if (tenant == NULL)
		return status;
	if (stream == NULL && is_thread)
		stream = (void *)STREAM_PER_THREAD;

	struct change *changes = (struct change *)(uintptr_t)call->held; /* NOLINT */

	for (unsigned int i = 0; i < count; i++) {
		if (changes[i].mapped != 0)
			note_mapped(tenant, &maps[i], &changes[i], is_done);
		else if (is_done && maps[i].operation == CU_MEM_OPERATION_TYPE_UNMAP)
			note_unmapped(tenant, &maps[i], &changes[i]);
		if (changes[i].unmapped != 0)
			freed_object(tenant, changes[i].unmapped, stream);
	}
	sys_unmap(changes, count * sizeof(*changes));
	freed_settle(tenant, NULL);
	return status;
}

void sparse_forget_array(uint64_t array)
{
	struct tenant *tenant = tenant_joined();
	struct table_cursor cursor = {0};
	struct table_entry tile;

	if (tenant == NULL || __atomic_load_n(&tenant->tiles, __ATOMIC_ACQUIRE) == 0)
		return;
	while (table_take_tile(&tenant->table, array, &cursor, &tile))
		object_drop(tenant, tile.owner);
}
