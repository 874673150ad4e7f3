// SPDX-License-Identifier: Apache-2.0
#include "slots.h"

#include <stddef.h>

#define EVER UINT64_MAX
#define POLL_NS UINT64_C(50000)

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

void slots_regroup(struct slots *slots)
{
	slots->group_count = 0;
	for (size_t i = 0; i < SLOTS_TENANTS; i++) {
		const struct slots_tenant *tenant = &slots->tenant[i];
		struct slots_group joined = {.cards = tenant->cards};
		unsigned int kept = 0;

		if (!tenant->is_used || tenant->cards == 0)
			continue;
		for (unsigned int g = 0; g < slots->group_count; g++) {
			if ((slots->group[g].cards & joined.cards) != 0)
				joined.cards |= slots->group[g].cards;
			else
				slots->group[kept++] = slots->group[g];
		}
		slots->group[kept++] = joined;
		slots->group_count = kept;
	}
	for (size_t i = 0; i < SLOTS_TENANTS; i++) {
		slots->tenant[i].is_owner = false;
		slots->tenant[i].grant_until_ns = 0;
		/* Groups begin at 0: a newcomer must not be owed what others had before it. */
		slots->tenant[i].virtual_ns = 0;
	}
}

static bool is_in(const struct slots_tenant *tenant, const struct slots_group *group)
{
	return tenant->is_used && (tenant->cards & group->cards) != 0;
}

static bool wants(const struct slots_tenant *tenant, uint64_t now_ns)
{
	return tenant->wanted_ns > tenant->granted_ns && now_ns < tenant->wanted_ns + SLOTS_WANT_NS;
}

/* An owner that has work on the card, or had some a moment ago, or has not begun yet. */
static bool is_active(const struct slots_tenant *tenant, uint64_t now_ns)
{
	uint64_t idle_from = most(tenant->queue_end_ns, tenant->granted_ns);

	if (tenant->is_syncing && now_ns < idle_from + SLOTS_SYNC_NS)
		return true;
	if (tenant->queue_end_ns <= tenant->granted_ns)
		return now_ns < tenant->granted_ns + SLOTS_FIRST_NS;
	return now_ns < tenant->queue_end_ns + SLOTS_IDLE_NS;
}

/* A round of so many. Few long turns cost fewer changes of contexts than many short ones; with
 * those changes 6, 4, 3 or 2 rounds take a tenth of a second, and so each has the same number of
 * them. */
static uint64_t round_of(unsigned int count)
{
	static const uint64_t round_ns[] = {16000000, 25000000, 31500000, 48000000};
	size_t last = sizeof(round_ns) / sizeof(round_ns[0]) - 1;

	return round_ns[least(count < 2 ? 0 : count - 2, last)];
}

/* The virtual time that a tenant's turn takes: each of those who compete with it has one in a
 * round. */
static uint64_t turn_of(const struct slots *slots, const struct slots_tenant *tenant,
			uint64_t now_ns)
{
	uint64_t weights = 0;
	unsigned int count = 0;

	for (size_t i = 0; i < SLOTS_TENANTS; i++) {
		const struct slots_tenant *other = &slots->tenant[i];

		if (!other->is_used || (other->cards & tenant->cards) == 0 ||
		    (other != tenant && !other->is_owner && !wants(other, now_ns)))
			continue;
		weights += other->weight;
		count++;
	}
	return most(round_of(count) * 100 / weights, SLOTS_QUANTUM_NS * 100 / tenant->weight);
}

/* When the turn of the owners ends: also before its time, when all of them say that they wait for
 * another one. */
static uint64_t turn_end(const struct slots *slots, const struct slots_group *group,
			 uint64_t now_ns)
{
	uint64_t end_ns = 0;

	for (size_t i = 0; i < SLOTS_TENANTS; i++) {
		const struct slots_tenant *tenant = &slots->tenant[i];

		if (!is_in(tenant, group) || !tenant->is_owner)
			continue;
		if (!wants(tenant, now_ns) || tenant->is_syncing ||
		    tenant->queue_end_ns <= tenant->granted_ns)
			return group->slot_end_ns;
		end_ns = most(end_ns, tenant->queue_end_ns);
	}
	return least(end_ns, group->slot_end_ns);
}

/* Owners pay half as much again for their time until they have paid for what was deferred. */
static void pay(struct slots_tenant *tenant, uint64_t time_ns)
{
	uint64_t more_ns = least(tenant->deferred_ns, time_ns / 2);

	tenant->deferred_ns -= more_ns;
	tenant->virtual_ns += (time_ns + more_ns) * 100 / tenant->weight;
}

/* Kernels may have taken longer than their owner could know when it said how long. Little is
 * deferred, and never forgiven: a tenant that lies gains it once. */
static void defer(struct slots *slots, const struct slots_group *group, uint64_t late_ns)
{
	for (size_t i = 0; i < SLOTS_TENANTS; i++) {
		struct slots_tenant *tenant = &slots->tenant[i];
		uint64_t more_ns = least(late_ns, less(SLOTS_DEFERRED_NS, tenant->deferred_ns));

		if (!is_in(tenant, group) || !tenant->is_owner)
			continue;
		tenant->deferred_ns += more_ns;
		tenant->virtual_ns = less(tenant->virtual_ns, more_ns * 100 / tenant->weight);
	}
}

/* Owners pay for the time until now, also for what they take beyond their turn. */
static void settle(struct slots *slots, struct slots_group *group, uint64_t now_ns)
{
	uint64_t turn_ends_ns = group->is_open ? now_ns : least(now_ns, group->slot_end_ns);
	uint64_t most_in_turn = 0;
	uint64_t most_behind = 0;

	for (size_t i = 0; i < SLOTS_TENANTS; i++) {
		struct slots_tenant *tenant = &slots->tenant[i];

		if (!is_in(tenant, group))
			continue;
		most_behind = most(most_behind, 2 * turn_of(slots, tenant, now_ns));
		if (!tenant->is_owner || now_ns <= tenant->charged_ns)
			continue;
		most_in_turn = most(most_in_turn,
				    less(turn_ends_ns, tenant->charged_ns) * 100 / tenant->weight);
		pay(tenant, now_ns - tenant->charged_ns);
		tenant->held_ns += now_ns - tenant->charged_ns;
		tenant->charged_ns = now_ns;
	}
	/* A turn without an end may be long, and counts as a whole. */
	group->behind_ns = most(least(group->behind_ns + most_in_turn, most_behind),
				group->is_open ? most_in_turn : 0);
}

/* The group's virtual time is that of its least served owner: who has slept may not have saved it
 * up. It moves on by what owners had in their turns, and not by what one took beyond: that would be
 * forgiven, once the others rest for a moment. */
static void move_on(const struct slots *slots, struct slots_group *group)
{
	uint64_t least_served = EVER;

	for (size_t i = 0; i < SLOTS_TENANTS; i++)
		if (is_in(&slots->tenant[i], group) && slots->tenant[i].is_owner)
			least_served = least(least_served, slots->tenant[i].virtual_ns);
	if (least_served == EVER)
		return;

	uint64_t moves = least(less(least_served, group->virtual_ns), group->behind_ns);

	group->virtual_ns += moves;
	group->behind_ns -= moves;
}

/* Who is so far ahead gets no time that the others leave, unless they leave it for longer: its next
 * kernel might be as long as the last one, and they would not get back what they have lost. */
static bool is_far_ahead(const struct slots_group *group, const struct slots_tenant *tenant,
			 uint64_t now_ns)
{
	return now_ns < group->contended_ns + SLOTS_ALONE_NS &&
	       tenant->virtual_ns > group->virtual_ns + SLOTS_AHEAD_NS * 100 / tenant->weight;
}

static bool is_candidate(const struct slots_group *group, const struct slots_tenant *tenant,
			 uint64_t now_ns)
{
	return (wants(tenant, now_ns) || (tenant->is_owner && is_active(tenant, now_ns))) &&
	       !is_far_ahead(group, tenant, now_ns);
}

/* What an owner has left of its turn; 0: nothing worth an extension. */
static uint64_t left_of(const struct slots *slots, const struct slots_tenant *tenant,
			uint64_t now_ns)
{
	uint64_t had = less(tenant->virtual_ns, tenant->turn_virtual_ns);
	uint64_t left_ns = less(turn_of(slots, tenant, now_ns), had) * tenant->weight / 100;

	return tenant->is_owner && left_ns > SLOTS_LEAST_NS ? left_ns : 0;
}

/* By what the tenants' order is decided. Who has the cards keeps them to the end of its turn,
 * unless somebody comes who was due before that began. */
static uint64_t due_of(const struct slots *slots, const struct slots_tenant *tenant,
		       uint64_t now_ns)
{
	return left_of(slots, tenant, now_ns) != 0 ? tenant->turn_virtual_ns : tenant->virtual_ns;
}

/* The candidate that is due first and needs none of the cards. */
static struct slots_tenant *next_of(struct slots *slots, const struct slots_group *group,
				    uint64_t taken, uint64_t now_ns)
{
	struct slots_tenant *next = NULL;

	for (size_t i = 0; i < SLOTS_TENANTS; i++) {
		struct slots_tenant *tenant = &slots->tenant[i];

		if (is_in(tenant, group) && (tenant->cards & taken) == 0 &&
		    is_candidate(group, tenant, now_ns) &&
		    (next == NULL || due_of(slots, tenant, now_ns) < due_of(slots, next, now_ns)))
			next = tenant;
	}
	return next;
}

/* Those who have slept may not have saved it all up. */
static void catch_up(struct slots *slots, const struct slots_group *group, uint64_t now_ns)
{
	for (size_t i = 0; i < SLOTS_TENANTS; i++) {
		struct slots_tenant *tenant = &slots->tenant[i];

		if (is_in(tenant, group) && !tenant->is_owner && wants(tenant, now_ns))
			tenant->virtual_ns =
				most(tenant->virtual_ns,
				     less(group->virtual_ns, 2 * turn_of(slots, tenant, now_ns)));
	}
}

/* Marks who is next in `chosen`, and tells whether they are the owners of now. */
static bool choose(struct slots *slots, const struct slots_group *group, uint64_t now_ns,
		   bool chosen[SLOTS_TENANTS])
{
	uint64_t taken = 0;
	bool is_same = true;
	struct slots_tenant *next;

	for (size_t i = 0; i < SLOTS_TENANTS; i++)
		chosen[i] = false;
	while ((next = next_of(slots, group, taken, now_ns)) != NULL) {
		taken |= next->cards;
		chosen[next - slots->tenant] = true;
	}
	for (size_t i = 0; i < SLOTS_TENANTS; i++)
		is_same &=
			!is_in(&slots->tenant[i], group) || slots->tenant[i].is_owner == chosen[i];
	return is_same;
}

/* How long the cards are given away for: what is left of the turns, in equal parts. */
static uint64_t slot_of(const struct slots *slots, const struct slots_group *group,
			const bool chosen[SLOTS_TENANTS], uint64_t now_ns)
{
	uint64_t slot_ns = EVER;

	for (size_t i = 0; i < SLOTS_TENANTS; i++) {
		const struct slots_tenant *tenant = &slots->tenant[i];

		if (!is_in(tenant, group) || !chosen[i])
			continue;

		uint64_t left_ns = left_of(slots, tenant, now_ns);
		uint64_t parts;

		if (left_ns == 0)
			left_ns = turn_of(slots, tenant, now_ns) * tenant->weight / 100;
		parts = (left_ns + SLOTS_QUANTUM_NS / 2) / SLOTS_QUANTUM_NS;
		slot_ns = least(slot_ns, left_ns / most(parts, 1));
	}
	return slot_ns == EVER ? SLOTS_QUANTUM_NS : slot_ns;
}

static void grant(struct slots *slots, struct slots_group *group, const bool chosen[SLOTS_TENANTS],
		  uint64_t now_ns, uint64_t from_ns)
{
	settle(slots, group, from_ns);
	if (group->drain_ns != 0)
		defer(slots, group, less(from_ns, group->due_ns));
	group->slot_end_ns = from_ns + slot_of(slots, group, chosen, now_ns);
	group->drain_ns = 0;
	group->is_open = false;
	for (size_t i = 0; i < SLOTS_TENANTS; i++) {
		struct slots_tenant *tenant = &slots->tenant[i];

		if (!is_in(tenant, group))
			continue;
		if (chosen[i]) {
			if (left_of(slots, tenant, now_ns) == 0)
				tenant->turn_virtual_ns = tenant->virtual_ns;
			if (!tenant->is_owner)
				tenant->charged_ns = tenant->grant_from_ns = from_ns;
			tenant->granted_ns = now_ns;
			tenant->turns++;
		}
		tenant->is_owner = chosen[i];
		tenant->grant_until_ns = chosen[i] ? group->slot_end_ns : 0;
	}
	move_on(slots, group);
}

/* How long before their turn those who are next have to be woken. */
static uint64_t lead_of(const struct slots *slots, const bool chosen[SLOTS_TENANTS])
{
	for (size_t i = 0; i < SLOTS_TENANTS; i++)
		if (chosen[i] && !slots->tenant[i].is_punctual)
			return SLOTS_LEAD_NS;
	return SLOTS_EARLY_NS;
}

/* The owners' queues as they predict them: when the last of them is dry. */
static uint64_t dry_ns(const struct slots *slots, const struct slots_group *group, uint64_t now_ns)
{
	uint64_t dry = 0;

	for (size_t i = 0; i < SLOTS_TENANTS; i++) {
		const struct slots_tenant *tenant = &slots->tenant[i];

		if (!is_in(tenant, group) || !tenant->is_owner)
			continue;
		dry = most(dry, tenant->queue_end_ns);
		if (tenant->is_syncing && now_ns < group->drain_ns + SLOTS_SYNC_NS)
			dry = most(dry, now_ns + POLL_NS);
	}
	return dry;
}

static bool owners_are_active(const struct slots *slots, const struct slots_group *group,
			      uint64_t now_ns, uint64_t *again_ns)
{
	bool is_any = false;

	for (size_t i = 0; i < SLOTS_TENANTS; i++) {
		const struct slots_tenant *tenant = &slots->tenant[i];

		if (!is_in(tenant, group) || !tenant->is_owner || !is_active(tenant, now_ns))
			continue;
		is_any = true;
		*again_ns = least(*again_ns, most(most(tenant->queue_end_ns, tenant->granted_ns) +
							  SLOTS_IDLE_NS,
						  now_ns + SLOTS_IDLE_NS));
	}
	return is_any;
}

static void close_owners(struct slots *slots, struct slots_group *group, uint64_t now_ns)
{
	for (size_t i = 0; i < SLOTS_TENANTS; i++)
		if (is_in(&slots->tenant[i], group))
			slots->tenant[i].grant_until_ns = 0;
	group->drain_ns = now_ns;
	group->due_ns = most(dry_ns(slots, group, now_ns), now_ns);
	group->is_open = false;
}

/* Whether an owner is over its time while a thread of it is kept from another of its cards: a
 * collective on one card may wait for its peer there. Both are given another moment, or the cards
 * would be blocked until the drain is given up. */
static void unblock(struct slots *slots, struct slots_group *group, uint64_t now_ns)
{
	bool is_any = false;

	if (now_ns < group->due_ns + SLOTS_STUCK_NS || now_ns > group->drain_ns + SLOTS_UNBLOCK_NS)
		return;
	for (size_t i = 0; i < SLOTS_TENANTS; i++) {
		struct slots_tenant *tenant = &slots->tenant[i];
		bool has_several = (tenant->cards & (tenant->cards - 1)) != 0;

		if (!is_in(tenant, group) || !tenant->is_owner || !has_several ||
		    !wants(tenant, now_ns))
			continue;
		tenant->grant_until_ns = now_ns + SLOTS_MOMENT_NS;
		is_any = true;
	}
	if (is_any)
		group->due_ns = now_ns + SLOTS_MOMENT_NS;
}

/* The turn is over: the next one begins when the owners' work is off the cards. */
static uint64_t hand_over(struct slots *slots, struct slots_group *group, uint64_t now_ns)
{
	bool chosen[SLOTS_TENANTS];
	bool is_same;

	settle(slots, group, now_ns);
	catch_up(slots, group, now_ns);
	is_same = choose(slots, group, now_ns, chosen);
	if (group->drain_ns == 0) {
		if (is_same) {
			grant(slots, group, chosen, now_ns, now_ns);
			return group->slot_end_ns - SLOTS_EARLY_NS;
		}
		close_owners(slots, group, now_ns);
	}

	uint64_t lead_ns = lead_of(slots, chosen);
	uint64_t dry = dry_ns(slots, group, now_ns);
	bool is_near = dry <= now_ns + lead_ns;

	if (!is_near && now_ns < group->drain_ns + SLOTS_DRAIN_NS) {
		unblock(slots, group, now_ns);
		return least(dry - lead_ns, now_ns + SLOTS_IDLE_NS);
	}
	grant(slots, group, chosen, now_ns,
	      is_near ? most(less(dry, SLOTS_HEAD_NS), now_ns) : now_ns);
	return group->slot_end_ns - SLOTS_EARLY_NS;
}

static uint64_t step_group(struct slots *slots, struct slots_group *group, uint64_t now_ns)
{
	bool has_owner = false;
	bool others_want = false;
	uint64_t again = EVER;

	for (size_t i = 0; i < SLOTS_TENANTS; i++) {
		const struct slots_tenant *tenant = &slots->tenant[i];

		if (!is_in(tenant, group))
			continue;
		has_owner |= tenant->is_owner;
		others_want |= !tenant->is_owner && wants(tenant, now_ns);
	}
	if (others_want && has_owner)
		group->contended_ns = now_ns;
	if (group->drain_ns != 0)
		return hand_over(slots, group, now_ns);
	if (!has_owner)
		return others_want ? hand_over(slots, group, now_ns) : EVER;
	if (others_want) {
		if (group->is_open) {
			settle(slots, group, now_ns);
			move_on(slots, group);
			/* Who was away takes the cards back as one who is due now, no sooner. */
			close_owners(slots, group, now_ns);
			return hand_over(slots, group, now_ns);
		}
		uint64_t end_ns = turn_end(slots, group, now_ns);

		if (now_ns + SLOTS_EARLY_NS >= end_ns ||
		    !owners_are_active(slots, group, now_ns, &again))
			return hand_over(slots, group, now_ns);
		return least(again, end_ns - SLOTS_EARLY_NS);
	}
	if (group->is_open)
		return EVER;
	if (now_ns > group->contended_ns + SLOTS_ALONE_NS) {
		group->is_open = true;
		for (size_t i = 0; i < SLOTS_TENANTS; i++)
			if (is_in(&slots->tenant[i], group) && slots->tenant[i].is_owner)
				slots->tenant[i].grant_until_ns = EVER;
		return EVER;
	}
	if (now_ns + SLOTS_EARLY_NS + SLOTS_LEAD_NS >= group->slot_end_ns) {
		settle(slots, group, now_ns);
		group->slot_end_ns = now_ns + SLOTS_QUANTUM_NS;
		for (size_t i = 0; i < SLOTS_TENANTS; i++)
			if (is_in(&slots->tenant[i], group) && slots->tenant[i].is_owner)
				slots->tenant[i].grant_until_ns = group->slot_end_ns;
	}
	return group->slot_end_ns - SLOTS_EARLY_NS;
}

uint64_t slots_step(struct slots *slots, uint64_t now_ns)
{
	uint64_t again = EVER;

	for (unsigned int g = 0; g < slots->group_count; g++)
		again = least(again, step_group(slots, &slots->group[g], now_ns));
	return most(again, now_ns + POLL_NS);
}
