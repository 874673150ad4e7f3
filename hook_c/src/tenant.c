// SPDX-License-Identifier: Apache-2.0
#include "tenant.h"

#include "dev_env.h"
#include "driver.h"
#include "hook_launch.h"
#include "libc.h"
#include "log.h"
#include "sys.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* Linux 4.14; not in the headers of glibc 2.17 */
#endif

enum mode {
	MODE_UNKNOWN,
	MODE_INERT,
	MODE_DEVELOPER,
	MODE_MANAGED,
};

/* Of struct tenant; grows, but for a step that fails: it is tried again. REFUSED is final. */
enum stage {
	STAGE_NEW, /* what a forked child finds */
	STAGE_OPENING,
	STAGE_OPEN,
	STAGE_JOINING,
	STAGE_JOINED,
	STAGE_REFUSED,
};

/* A stage that another thread is working on takes some system calls. */
#define STAGE_WAIT_NS 100000L
#define STAGE_WAITS 100000 /* 10 s */

static uint32_t process_mode;   /* enum mode; the same for all children */
static struct tenant *the_page; /* set once, wiped by fork, never unmapped */
static struct tenant no_page;   /* refused: there was no memory for the page */
static char usage_path[64];     /* developer mode's default */

/* Two threads may find out at the same time; they find the same. */
static enum mode mode_of_process(void)
{
	enum mode mode = __atomic_load_n(&process_mode, __ATOMIC_RELAXED);

	if (mode != MODE_UNKNOWN)
		return mode;

	if (driver_own_path_is_in(VGPU_CONTAINER_DIR) || sys_exists(VGPU_CONTAINER_LIMITS))
		mode = MODE_MANAGED;
	else if (dev_env_is_set())
		mode = MODE_DEVELOPER;
	else if (libc_is_ready())
		mode = MODE_INERT;
	else
		return MODE_INERT; /* for now: the environment is not there yet */
	__atomic_store_n(&process_mode, mode, __ATOMIC_RELAXED);
	return mode;
}

bool tenant_is_inert(void)
{
	return mode_of_process() == MODE_INERT;
}

bool tenant_is_known(void)
{
	mode_of_process();
	return __atomic_load_n(&process_mode, __ATOMIC_RELAXED) != MODE_UNKNOWN;
}

bool tenant_is_developer(void)
{
	return mode_of_process() == MODE_DEVELOPER;
}

static struct tenant *refused_page(const char *sentence)
{
	explain(&no_page.reason, "%s", sentence);
	__atomic_store_n(&no_page.stage, STAGE_REFUSED, __ATOMIC_RELEASE);
	return &no_page;
}

static struct tenant *page_of_process(void)
{
	struct tenant *page = __atomic_load_n(&the_page, __ATOMIC_ACQUIRE);

	if (page != NULL)
		return page;

	struct tenant *fresh = sys_map(sizeof(*fresh), PROT_READ | PROT_WRITE, -1);

	if (fresh == NULL)
		return refused_page("no memory for its own state");

	int error = sys_advise(fresh, sizeof(*fresh), MADV_WIPEONFORK);

	if (error != 0) {
		sys_unmap(fresh, sizeof(*fresh));
		return refused_page(
			error == -EINVAL ? "the kernel cannot wipe pages on fork (Linux 4.14 can)"
					 : "madvise(MADV_WIPEONFORK) is not permitted here");
	}
	if (__atomic_compare_exchange_n(&the_page, &page, fresh, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return fresh;
	sys_unmap(fresh, sizeof(*fresh)); /* another thread was first */
	return page;
}

static bool open_usage(struct tenant *tenant, const char *path)
{
	if (region_open(&tenant->region, path, tenant_is_developer(), &tenant->reason))
		return true;
	limits_close(&tenant->limits);
	return false;
}

static bool open_files(struct tenant *tenant)
{
	bool is_developer = tenant_is_developer();
	unsigned int level = is_developer ? dev_env_log_level() : VGPU_RING_ERROR + 1;
	const char *path = VGPU_CONTAINER_USAGE;

	log_start(NULL, level);
	if (is_developer) {
		path = dev_env_usage_path(usage_path, sizeof(usage_path));
		if (!dev_env_limits(&tenant->limits, &tenant->reason))
			return false;
	} else if (!limits_open(&tenant->limits, VGPU_CONTAINER_LIMITS, &tenant->reason)) {
		return false;
	}
	if (!open_usage(tenant, path))
		return false;
	log_start(tenant->region.usage, level);
	tenant->quota.region = &tenant->region;
	tenant->quota.limits = &tenant->limits;
	return true;
}

static bool join(struct tenant *tenant)
{
	if (!launch_prepare()) {
		explain(&tenant->reason, "no memory for its compute limit");
		return false;
	}
	if (!region_claim(&tenant->region, &tenant->reason))
		return false;
	region_tend(&tenant->region, true); /* of those that were there before, some may be dead */
	return true;
}

/* Brings the tenant from one stage to the next; one thread does it, the others wait. */
static void advance(struct tenant *tenant, enum stage from, enum stage via, enum stage to,
		    bool (*step)(struct tenant *))
{
	uint32_t stage = from;

	if (__atomic_compare_exchange_n(&tenant->stage, &stage, via, false, __ATOMIC_ACQUIRE,
					__ATOMIC_ACQUIRE)) {
		stage = step(tenant) ? to : from;
		__atomic_store_n(&tenant->stage, stage, __ATOMIC_RELEASE);
		return;
	}
	for (int waits = 0; stage == via && waits < STAGE_WAITS; waits++) {
		sys_sleep_ns(STAGE_WAIT_NS);
		stage = __atomic_load_n(&tenant->stage, __ATOMIC_ACQUIRE);
	}
}

static enum tenant_state reach(struct tenant **tenant, enum stage least)
{
	struct tenant *page = page_of_process();
	uint32_t stage = __atomic_load_n(&page->stage, __ATOMIC_ACQUIRE);

	*tenant = page;
	if (stage < least) {
		advance(page, STAGE_NEW, STAGE_OPENING, STAGE_OPEN, open_files);
		if (least == STAGE_JOINED)
			advance(page, STAGE_OPEN, STAGE_JOINING, STAGE_JOINED, join);
		stage = __atomic_load_n(&page->stage, __ATOMIC_ACQUIRE);
	}
	return stage >= least && stage != STAGE_REFUSED ? TENANT_ENFORCED : TENANT_REFUSED;
}

enum tenant_state tenant_open(struct tenant **tenant)
{
	return tenant_is_inert() ? TENANT_INERT : reach(tenant, STAGE_OPEN);
}

enum tenant_state tenant_join(struct tenant **tenant)
{
	return tenant_is_inert() ? TENANT_INERT : reach(tenant, STAGE_JOINED);
}

struct tenant *tenant_joined(void)
{
	struct tenant *page = __atomic_load_n(&the_page, __ATOMIC_ACQUIRE);

	return page != NULL && __atomic_load_n(&page->stage, __ATOMIC_ACQUIRE) == STAGE_JOINED
		       ? page
		       : NULL;
}

void tenant_refuse(struct tenant *tenant)
{
	__atomic_store_n(&tenant->stage, STAGE_REFUSED, __ATOMIC_RELEASE);
	__atomic_store_n(&launch_words.only_card, NULL, __ATOMIC_RELAXED); /* launches ask again */
}
