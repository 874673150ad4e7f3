// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MANY 20000

static struct table table;

static struct table_entry entry_of(uint64_t handle)
{
	return (struct table_entry){.kind = TABLE_MEMORY,
				    .handle = handle,
				    .bytes = handle * 3,
				    .owner = handle % 7 + 1,
				    .card = (uint32_t)handle % 16};
}

static void put(uint64_t handle)
{
	struct table_entry entry = entry_of(handle);

	CHECK(table_put(&table, &entry));
}

static bool take(uint64_t handle)
{
	struct table_entry want = entry_of(handle);
	struct table_entry got;

	return table_take(&table, TABLE_MEMORY, handle, &got) && got.bytes == want.bytes &&
	       got.owner == want.owner && got.card == want.card;
}

static void test_gives_back_what_was_put(void)
{
	for (uint64_t i = 1; i <= MANY; i++)
		put(i << 21);
	for (uint64_t i = 1; i <= MANY; i += 2)
		CHECK(take(i << 21));
	for (uint64_t i = 1; i <= MANY; i++)
		CHECK(take(i << 21) == (i % 2 == 0));
}

static void test_a_taken_handle_is_gone(void)
{
	put(4096);
	CHECK(take(4096));
	CHECK(!take(4096));
}

static void test_the_same_number_of_another_kind_is_another_handle(void)
{
	struct table_entry context = {.kind = TABLE_CONTEXT, .handle = 4096, .bytes = 1};
	struct table_entry got;

	put(4096);
	CHECK(table_put(&table, &context));
	CHECK(take(4096));
	CHECK(table_take(&table, TABLE_CONTEXT, 4096, &got) && got.bytes == 1);
}

static void test_a_handle_put_twice_counts_once(void)
{
	put(8192);
	put(8192);
	CHECK(take(8192));
	CHECK(!take(8192));
}

static void test_a_context_takes_its_allocations_along(void)
{
	struct table_cursor cursor = {0};
	struct table_entry entry;
	unsigned int taken = 0;

	for (uint64_t i = 1; i <= MANY; i++)
		put(i);
	while (table_take_of_context(&table, 3, &cursor, &entry)) {
		CHECK(entry.owner == 3);
		taken++;
	}
	CHECK(taken == (MANY + 5) / 7);
	for (uint64_t i = 1; i <= MANY; i++)
		CHECK(take(i) == (i % 7 + 1 != 3));
}

static void test_references_keep_an_entry(void)
{
	struct table_entry object = {.kind = TABLE_OBJECT, .handle = 9, .bytes = 5, .refs = 1};
	struct table_entry got;

	CHECK(table_put(&table, &object));
	CHECK(table_refer(&table, TABLE_OBJECT, 9, 1, &got) && got.refs == 2);
	CHECK(table_refer(&table, TABLE_OBJECT, 9, -1, &got) && got.refs == 1);
	CHECK(table_refer(&table, TABLE_OBJECT, 9, -1, &got) && got.refs == 0 && got.bytes == 5);
	CHECK(!table_refer(&table, TABLE_OBJECT, 9, 1, &got));
}

static void test_an_address_inside_a_range_is_found(void)
{
	struct table_entry mapping = {.kind = TABLE_MAPPING, .handle = 1000, .bytes = 100};
	struct table_entry got;

	CHECK(table_put(&table, &mapping));
	CHECK(table_find_range(&table, TABLE_MAPPING, 1000, &got));
	CHECK(table_find_range(&table, TABLE_MAPPING, 1099, &got) && got.handle == 1000);
	CHECK(!table_find_range(&table, TABLE_MAPPING, 1100, &got));
	CHECK(!table_find_range(&table, TABLE_MAPPING, 999, &got));
	CHECK(table_take(&table, TABLE_MAPPING, 1000, &got));
}

static void *work(void *argument)
{
	uint64_t base = (uint64_t)(uintptr_t)argument << 40;
	struct table_entry entry;
	uintptr_t lost = 0;

	for (int round = 0; round < 20; round++) {
		for (uint64_t i = 1; i < 500; i++) {
			entry = entry_of(base + i);
			lost += !table_put(&table, &entry);
		}
		for (uint64_t i = 1; i < 500; i++)
			lost += !table_take(&table, TABLE_MEMORY, base + i, &entry);
	}
	return (void *)lost;
}

static void test_threads_do_not_lose_entries(void)
{
	pthread_t threads[8];

	for (uintptr_t i = 0; i < 8; i++)
		CHECK(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
	for (int i = 0; i < 8; i++) {
		void *lost;

		pthread_join(threads[i], &lost);
		CHECK(lost == NULL);
	}
	for (int i = 0; i < TABLE_SHARDS; i++)
		CHECK(table.shard[i].count == 0);
}

int main(void)
{
	RUN(test_gives_back_what_was_put);
	RUN(test_a_taken_handle_is_gone);
	RUN(test_the_same_number_of_another_kind_is_another_handle);
	RUN(test_a_handle_put_twice_counts_once);
	RUN(test_a_context_takes_its_allocations_along);
	RUN(test_references_keep_an_entry);
	RUN(test_an_address_inside_a_range_is_found);
	RUN(test_threads_do_not_lose_entries);
	return check_end();
}
