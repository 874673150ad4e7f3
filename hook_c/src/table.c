// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include "sys.h"

#include <stddef.h>

#define FIRST_CAPACITY 128 /* of a shard: one page */

static void lock(struct table_shard *shard)
{
	while (__atomic_exchange_n(&shard->locked, 1, __ATOMIC_ACQUIRE) != 0)
		sys_yield();
}

static void unlock(struct table_shard *shard)
{
	__atomic_store_n(&shard->locked, 0, __ATOMIC_RELEASE);
}

/* Handles are addresses: their low bits say little, so all bits are mixed into all. */
static uint64_t hash_of(enum table_kind kind, uint64_t handle)
{
	uint64_t hash = (handle ^ (uint64_t)kind << 56) * UINT64_C(0x9e3779b97f4a7c15);

	hash ^= hash >> 32;
	return hash * UINT64_C(0xd6e8feb86659fd93);
}

static struct table_shard *shard_of(struct table *table, uint64_t hash)
{
	return &table->shard[hash >> 58]; /* the top bits; the slot is chosen by lower ones */
}

_Static_assert(TABLE_SHARDS == 64, "shard_of takes six bits");

static uint32_t home_of(const struct table_shard *shard, uint64_t hash)
{
	return (uint32_t)(hash >> 20) & (shard->capacity - 1);
}

static uint32_t next(const struct table_shard *shard, uint32_t index)
{
	return (index + 1) & (shard->capacity - 1);
}

/* Index of the entry, or of the free place where it belongs. */
static uint32_t probe(const struct table_shard *shard, enum table_kind kind, uint64_t handle)
{
	uint32_t index = home_of(shard, hash_of(kind, handle));

	while (shard->entries[index].kind != TABLE_NONE &&
	       (shard->entries[index].kind != kind || shard->entries[index].handle != handle))
		index = next(shard, index);
	return index;
}

static bool grow(struct table_shard *shard)
{
	struct table_shard wider = {.capacity = shard->capacity == 0 ? FIRST_CAPACITY
								     : shard->capacity * 2};

	if (wider.capacity == 0)
		return false;
	wider.entries =
		sys_map(wider.capacity * sizeof(*wider.entries), PROT_READ | PROT_WRITE, -1);
	if (wider.entries == NULL)
		return false;
	for (uint32_t i = 0; i < shard->capacity; i++) {
		const struct table_entry *entry = &shard->entries[i];

		if (entry->kind != TABLE_NONE)
			wider.entries[probe(&wider, entry->kind, entry->handle)] = *entry;
	}
	if (shard->capacity != 0)
		sys_unmap(shard->entries, shard->capacity * sizeof(*shard->entries));
	shard->entries = wider.entries;
	shard->capacity = wider.capacity;
	return true;
}

/* Under the lock: the entry's place, whatever stands there; NULL: no memory. What is there already
 * needs none. */
static struct table_entry *place_for(struct table_shard *shard, const struct table_entry *entry)
{
	if (shard->count != 0) {
		struct table_entry *place =
			&shard->entries[probe(shard, entry->kind, entry->handle)];

		if (place->kind != TABLE_NONE)
			return place;
	}
	if (shard->count >= shard->capacity / 4 * 3 && !grow(shard))
		return NULL;
	return &shard->entries[probe(shard, entry->kind, entry->handle)];
}

/* Under the lock. */
static void set(struct table_shard *shard, struct table_entry *place,
		const struct table_entry *entry)
{
	__atomic_store_n(&shard->count, shard->count + (place->kind == TABLE_NONE),
			 __ATOMIC_RELEASE);
	*place = *entry;
}

bool table_put(struct table *table, const struct table_entry *entry)
{
	struct table_shard *shard = shard_of(table, hash_of(entry->kind, entry->handle));

	lock(shard);

	struct table_entry *place = place_for(shard, entry);

	if (place != NULL)
		set(shard, place, entry);
	unlock(shard);
	return place != NULL;
}

bool table_join(struct table *table, const struct table_entry *entry, bool *is_new)
{
	struct table_shard *shard = shard_of(table, hash_of(entry->kind, entry->handle));

	lock(shard);

	struct table_entry *place = place_for(shard, entry);

	if (place != NULL) {
		*is_new = place->kind == TABLE_NONE;
		if (*is_new) {
			set(shard, place, entry);
			place->refs = 0;
		}
		place->refs++;
	}
	unlock(shard);
	return place != NULL;
}

/* Closes the hole, so that no probe ends early: moves up every entry that would be looked for
 * from a place at or before the hole. */
static void remove_at(struct table_shard *shard, uint32_t hole)
{
	uint32_t mask = shard->capacity - 1;

	for (uint32_t index = next(shard, hole); shard->entries[index].kind != TABLE_NONE;
	     index = next(shard, index)) {
		const struct table_entry *entry = &shard->entries[index];
		uint32_t home = home_of(shard, hash_of(entry->kind, entry->handle));

		if (((index - home) & mask) >= ((index - hole) & mask)) {
			shard->entries[hole] = *entry;
			hole = index;
		}
	}
	shard->entries[hole].kind = TABLE_NONE;
	__atomic_store_n(&shard->count, shard->count - 1, __ATOMIC_RELEASE);
}

bool table_take(struct table *table, enum table_kind kind, uint64_t handle,
		struct table_entry *entry)
{
	struct table_shard *shard = shard_of(table, hash_of(kind, handle));
	bool found = false;

	/* Whoever may free has seen its entry put: an empty shard needs no lock. */
	if (__atomic_load_n(&shard->count, __ATOMIC_ACQUIRE) == 0)
		return false;
	lock(shard);
	if (shard->count != 0) {
		uint32_t index = probe(shard, kind, handle);

		found = shard->entries[index].kind == kind;
		if (found) {
			*entry = shard->entries[index];
			remove_at(shard, index);
		}
	}
	unlock(shard);
	return found;
}

bool table_refer(struct table *table, enum table_kind kind, uint64_t handle, int32_t change,
		 struct table_entry *entry)
{
	struct table_shard *shard = shard_of(table, hash_of(kind, handle));
	bool found = false;

	lock(shard);
	if (shard->count != 0) {
		uint32_t index = probe(shard, kind, handle);

		found = shard->entries[index].kind == kind;
		if (found) {
			shard->entries[index].refs += (uint32_t)change;
			*entry = shard->entries[index];
			if (entry->refs == 0)
				remove_at(shard, index);
		}
	}
	unlock(shard);
	return found;
}

bool table_find_range(struct table *table, enum table_kind kind, uint64_t address,
		      struct table_entry *entry)
{
	for (unsigned int i = 0; i < TABLE_SHARDS; i++) {
		struct table_shard *shard = &table->shard[i];
		bool found = false;

		lock(shard);
		for (uint32_t index = 0; !found && index < shard->capacity; index++) {
			const struct table_entry *place = &shard->entries[index];

			found = place->kind == kind && address >= place->handle &&
				address - place->handle < place->bytes;
			if (found)
				*entry = *place;
		}
		unlock(shard);
		if (found)
			return true;
	}
	return false;
}

static bool is_of_context(const struct table_entry *entry, uint64_t context)
{
	return (entry->kind == TABLE_MEMORY || entry->kind == TABLE_ARRAY) &&
	       entry->owner == context;
}

static bool is_tile_of(const struct table_entry *entry, uint64_t array)
{
	return entry->kind == TABLE_TILE && entry->bytes == array;
}

static bool take_next(struct table *table, bool (*is_wanted)(const struct table_entry *, uint64_t),
		      uint64_t value, struct table_cursor *cursor, struct table_entry *entry)
{
	bool found = false;

	for (; !found && cursor->shard < TABLE_SHARDS; cursor->shard += !found) {
		struct table_shard *shard = &table->shard[cursor->shard];

		lock(shard);
		/* remove_at may move a later entry to this place, so it is looked at again. */
		for (; !found && cursor->index < shard->capacity; cursor->index += !found) {
			const struct table_entry *place = &shard->entries[cursor->index];

			found = is_wanted(place, value);
			if (found) {
				*entry = *place;
				remove_at(shard, cursor->index);
			}
		}
		unlock(shard);
		if (!found)
			cursor->index = 0;
	}
	return found;
}

bool table_take_of_context(struct table *table, uint64_t context, struct table_cursor *cursor,
			   struct table_entry *entry)
{
	return take_next(table, is_of_context, context, cursor, entry);
}

bool table_take_tile(struct table *table, uint64_t array, struct table_cursor *cursor,
		     struct table_entry *entry)
{
	return take_next(table, is_tile_of, array, cursor, entry);
}
