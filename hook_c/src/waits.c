// SPDX-License-Identifier: Apache-2.0
#include "waits.h"

uint32_t waits_enter(struct waits *waits)
{
	uint32_t number = __atomic_load_n(&waits->number, __ATOMIC_RELAXED);

	__atomic_add_fetch(&waits->under_way[number], 1, __ATOMIC_SEQ_CST);
	return number;
}

void waits_leave(struct waits *waits, uint32_t number)
{
	__atomic_sub_fetch(&waits->under_way[number], 1, __ATOMIC_SEQ_CST);
}

bool waits_have_ended(struct waits *waits, struct waits_moment *moment)
{
	uint32_t next = __atomic_load_n(&waits->number, __ATOMIC_RELAXED) ^ 1;

	/* A number that is 0 once has none of them left; who comes later may make it grow again. */
	for (int i = 0; i < 2; i++)
		if (__atomic_load_n(&waits->under_way[i], __ATOMIC_SEQ_CST) == 0)
			moment->is_over[i] = true;
	if (moment->is_over[0] && moment->is_over[1])
		return true;
	if (__atomic_load_n(&waits->under_way[next], __ATOMIC_SEQ_CST) == 0)
		__atomic_store_n(&waits->number, next, __ATOMIC_RELAXED);
	return false;
}
