// SPDX-License-Identifier: Apache-2.0
#include "launch_window.h"

#include "launch_policy.h"

#define WINDOW_BATCH_NS 4000000 /* of credit on each card, before a window begins */
#define LONGEST_WINDOW_NS UINT64_C(40000000)
#define OVERDUE_NS 200000             /* a card's work may wait for another card's */
#define CATCH_UP_IN_TURN_NS 200000000 /* while containers on other cards wait, too */
#define CATCH_UP_NS 20000000          /* that a card may owe for what others wait for */
#define SHORT_SLEEP_NS 20000
#define MOST_BEHIND 16 /* launches; ranks whose numbers differ by more do not do the same */

static uint32_t launches_on(const struct tenant *tenant, unsigned int index)
{
	return __atomic_load_n(&tenant->region.usage->turn[index].launches, __ATOMIC_RELAXED);
}

/* By how many launches the card is behind the one that is furthest ahead. */
static uint32_t launches_behind(const struct tenant *tenant, unsigned int index)
{
	uint32_t own = launches_on(tenant, index);
	uint32_t most = 0;

	for (unsigned int i = 0; i < tenant->limits.count; i++) {
		int32_t ahead = (int32_t)(launches_on(tenant, i) - own);

		if (ahead > 0 && (uint32_t)ahead > most)
			most = (uint32_t)ahead;
	}
	return most;
}

/* Programs that launch different numbers of kernels on their cards begin anew with each window. */
static void line_up(const struct tenant *tenant)
{
	struct vgpu_usage_turn *turn = tenant->region.usage->turn;

	for (unsigned int i = 0; i < tenant->limits.count; i++) {
		uint32_t behind = launches_behind(tenant, i);

		if (behind > MOST_BEHIND)
			__atomic_add_fetch(&turn[i].launches, behind, __ATOMIC_RELAXED);
	}
}

/* Whoever finds credit for all of the cards opens the window for all processes. 0: it is open; else
 * for how long to wait. */
static uint64_t wait_for_window(const struct tenant *tenant, uint64_t start_ns, uint64_t now_ns)
{
	struct vgpu_usage *usage = tenant->region.usage;
	uint64_t *word = &usage->turn[0].window_end_ns;
	uint64_t seen_ns = __atomic_load_n(word, __ATOMIC_ACQUIRE);
	uint64_t end_ns = seen_ns > now_ns + LONGEST_WINDOW_NS ? 0 : seen_ns; /* forged */
	uint64_t length_ns = LONGEST_WINDOW_NS;
	uint64_t wait_ns = 0;

	if (start_ns < end_ns)
		return 0;
	if (now_ns < end_ns)
		return end_ns - now_ns;
	for (unsigned int i = 0; i < tenant->limits.count; i++) {
		struct policy policy = policy_of(tenant, i, now_ns);
		struct throttle_account account = card_account(&usage->turn[i]);
		uint64_t pending_ns = card_pending_of_container(tenant, i);

		if (policy.percent == 100)
			continue;
		throttle_refill(&account, policy.percent, policy.horizon_ns, policy.kept_ns,
				pending_ns, now_ns);

		int64_t available_ns = throttle_available(&account, pending_ns);

		if (available_ns < WINDOW_BATCH_NS) {
			uint64_t lack_ns =
				throttle_lack_ns(available_ns, policy.percent, WINDOW_BATCH_NS);

			wait_ns = lack_ns > wait_ns ? lack_ns : wait_ns;
		} else {
			uint64_t lasts_ns = (uint64_t)available_ns * 100 / (100 - policy.percent);

			length_ns = lasts_ns < length_ns ? lasts_ns : length_ns;
		}
	}
	if (wait_ns != 0)
		return wait_ns;
	if (__atomic_compare_exchange_n(word, &seen_ns, now_ns + length_ns, false, __ATOMIC_ACQ_REL,
					__ATOMIC_RELAXED)) {
		line_up(tenant);
		clock_wake((uint32_t *)word);
	}
	return SHORT_SLEEP_NS;
}

/* Whether other cards of the container are at work, and one of them for longer than it should be:
 * its kernel may wait for what comes next on this one. Threads that launch on several cards are
 * never quite at the same place when a window ends. */
static bool others_are_at_work(const struct launch_card *card, const struct tenant *tenant,
			       uint64_t now_ns, bool *is_overdue)
{
	const struct vgpu_usage_turn *turn = tenant->region.usage->turn;
	bool are_at_work = false;

	*is_overdue = false;
	for (unsigned int i = 0; i < tenant->limits.count; i++) {
		if (i == card->index || card_pending_of_container(tenant, i) == 0)
			continue;
		are_at_work = true;
		*is_overdue |=
			now_ns >= __atomic_load_n(&turn[i].due_ns, __ATOMIC_RELAXED) + OVERDUE_NS;
	}
	return are_at_work;
}

bool window_is_behind(const struct launch_card *card, const struct tenant *tenant)
{
	uint32_t behind = launches_behind(tenant, card->index);

	return behind != 0 && behind <= MOST_BEHIND;
}

void window_note_launch(const struct launch_card *card)
{
	__atomic_store_n(&card->turn->due_ns, card->throttle.queue_end_ns, __ATOMIC_RELAXED);
	__atomic_add_fetch(&card->turn->launches, 1, __ATOMIC_RELAXED);
}

uint64_t window_wait(const struct launch_card *card, const struct tenant *tenant,
		     uint64_t pending_ns, bool has_end, uint64_t start_ns, uint64_t now_ns)
{
	uint64_t wait_ns = wait_for_window(tenant, start_ns, now_ns);
	int64_t most_owed_ns = has_end ? CATCH_UP_IN_TURN_NS : CATCH_UP_NS;
	bool is_overdue;

	if (wait_ns == 0 || !others_are_at_work(card, tenant, now_ns, &is_overdue))
		return wait_ns;
	if (throttle_available(&card->throttle.account, pending_ns) <= -most_owed_ns)
		return wait_ns;

	if (window_is_behind(card, tenant))
		return 0;
	/* One at a time: more than what the other waits for would soon have it wait for us. */
	if (is_overdue && card->throttle.queue_end_ns <= now_ns)
		return 0;

	uint64_t most_ns = is_overdue ? SHORT_SLEEP_NS : OVERDUE_NS;

	return wait_ns < most_ns ? wait_ns : most_ns;
}

const uint32_t *window_word(const struct tenant *tenant)
{
	return (const uint32_t *)&tenant->region.usage->turn[0].window_end_ns;
}
