// SPDX-License-Identifier: Apache-2.0
#include "slabs.h"

#include "hook.h"

static bool is_small(uint64_t bytes)
{
	return bytes <= QUOTA_SMALL_BYTES;
}

static uint64_t slab_of(uint64_t address)
{
	return address & ~(QUOTA_SLAB_BYTES - 1);
}

static bool reserve_small(struct tenant *tenant, struct table_entry *memory)
{
	memory->refs = 1;
	if (quota_try(&tenant->quota, memory->card, QUOTA_SLAB_BYTES)) {
		quota_keep(&tenant->quota, memory->card, QUOTA_SLAB_BYTES);
		return true;
	}
	if (__atomic_load_n(&tenant->slabs[memory->card], __ATOMIC_RELAXED) == 0)
		return pools_reserve(tenant, memory->card, QUOTA_SLAB_BYTES);
	memory->refs = 0;
	return true;
}

bool slabs_reserve(struct tenant *tenant, struct table_entry *memory)
{
	memory->refs = 0;
	if (is_small(memory->bytes))
		return reserve_small(tenant, memory);
	if (memory->bytes > UINT64_MAX - QUOTA_SLAB_BYTES) {
		region_note_refused(tenant->quota.region, memory->card);
		return false;
	}
	return pools_reserve(tenant, memory->card, quota_round_up(memory->bytes, QUOTA_SLAB_BYTES));
}

void slabs_unreserve(struct tenant *tenant, const struct table_entry *memory)
{
	uint64_t bytes = is_small(memory->bytes) ? memory->refs * QUOTA_SLAB_BYTES
						 : quota_round_up(memory->bytes, QUOTA_SLAB_BYTES);

	if (bytes != 0)
		quota_release(&tenant->quota, memory->card, bytes);
}

/* A slab is in the table only when it is charged: whoever puts it there has reserved it before. */
static bool join(struct tenant *tenant, struct table_entry *memory)
{
	struct table_entry slab = {
		.kind = TABLE_SLAB, .handle = slab_of(memory->handle), .card = memory->card};
	bool is_new = false;

	if (!table_refer(&tenant->table, TABLE_SLAB, slab.handle, 1, &slab)) {
		if (memory->refs == 0 && !pools_reserve(tenant, memory->card, QUOTA_SLAB_BYTES))
			return false;
		memory->refs = 1;
		if (!table_join(&tenant->table, &slab, &is_new))
			return false;
	}
	if (is_new)
		__atomic_add_fetch(&tenant->slabs[memory->card], 1, __ATOMIC_RELAXED);
	else
		slabs_unreserve(tenant, memory);
	memory->refs = 0;
	return true;
}

static void leave(struct tenant *tenant, uint32_t card, uint64_t address)
{
	struct table_entry slab;

	if (!table_refer(&tenant->table, TABLE_SLAB, slab_of(address), -1, &slab) || slab.refs != 0)
		return;
	__atomic_sub_fetch(&tenant->slabs[card], 1, __ATOMIC_RELAXED);
	quota_release(&tenant->quota, card, QUOTA_SLAB_BYTES);
}

bool slabs_hold(struct tenant *tenant, struct table_entry *memory)
{
	if (is_small(memory->bytes) && !join(tenant, memory)) {
		slabs_unreserve(tenant, memory);
		return false;
	}
	/* What cannot be recorded could never be given back to the account. */
	if (table_put(&tenant->table, memory))
		return true;
	slabs_release(tenant, memory->card, memory->handle, memory->bytes);
	return false;
}

void slabs_release(struct tenant *tenant, uint32_t card, uint64_t address, uint64_t bytes)
{
	if (is_small(bytes))
		leave(tenant, card, address);
	else
		quota_release(&tenant->quota, card, quota_round_up(bytes, QUOTA_SLAB_BYTES));
}
