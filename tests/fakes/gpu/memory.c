/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear and host memory. Sizes are what a real driver takes from the card (measured on an H100):
 * up to 1 MiB is rounded to 512 B and cut from 2 MiB slabs, more is rounded up to 2 MiB.
 */
#include "memory.h"
#include "address.h"
#include "context.h"
#include "graph.h"
#include "pool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SMALL_BYTES MIB
#define UNIT_BYTES 512
#define UNITS (GRANULE_BYTES / UNIT_BYTES)
#define PITCH_BYTES 512

struct slab {
	CUdeviceptr base;
	struct context *context;
	unsigned int used_units;
	struct slab *next;
	struct region *unit[UNITS]; /* the region that covers each unit */
};

static struct region *regions; /* those at device addresses, newest first */
static struct region *outside; /* those at addresses of the machine */
static uint64_t made;

/* --- the list of all regions ---------------------------------------------------------------- */

static struct region *add_region(enum region_kind kind, CUdeviceptr base, uint64_t bytes,
				 CUdevice ordinal)
{
	struct region *region = calloc(1, sizeof(*region));
	struct region **list = address_is_device(base) ? &regions : &outside;

	if (region == NULL)
		return NULL;
	region->kind = kind;
	region->base = base;
	region->bytes = bytes;
	region->ordinal = ordinal;
	region->number = ++made;
	region->next = *list;
	if (*list != NULL)
		(*list)->previous = region;
	*list = region;
	return region;
}

static void remove_region(struct region *region)
{
	if (region->previous != NULL)
		region->previous->next = region->next;
	else if (regions == region)
		regions = region->next;
	else
		outside = region->next;
	if (region->next != NULL)
		region->next->previous = region->previous;
	if (region->contents != NULL && !region->contents_borrowed)
		(void)munmap(region->contents, region->bytes);
	free(region);
}

struct region *memory_describe(enum region_kind kind, CUdeviceptr base, uint64_t bytes,
			       CUdevice ordinal)
{
	struct region *region = add_region(kind, base, bytes, ordinal);

	if (region != NULL && address_is_device(base))
		address_set_region(base, bytes, region);
	return region;
}

void memory_undescribe(struct region *region)
{
	if (address_is_device(region->base))
		address_set_region(region->base, region->bytes, NULL);
	remove_region(region);
}

struct region *memory_find(CUdeviceptr address)
{
	struct region *region = address_region(address);
	const struct slab *slab = address_slab(address);

	if (slab != NULL)
		return slab->unit[(address - slab->base) / UNIT_BYTES];
	if (region != NULL)
		return address - region->base < region->bytes ? region : NULL;
	for (region = outside; region != NULL; region = region->next)
		if (address >= region->base && address - region->base < region->bytes)
			return region;
	return NULL;
}

struct region *memory_by_number(uint64_t number)
{
	for (struct region *region = regions; region != NULL; region = region->next)
		if (region->number == number)
			return region;
	return NULL;
}

bool memory_is_held_by(uint64_t holder)
{
	for (const struct region *region = regions; region != NULL; region = region->next)
		if (region->taken && region->holder == holder)
			return true;
	return false;
}

/* --- small pieces --------------------------------------------------------------------------- */

static int find_gap(const struct slab *slab, unsigned int units)
{
	unsigned int run = 0;

	if (UNITS - slab->used_units < units)
		return -1;
	for (unsigned int i = 0; i < UNITS; i++) {
		run = slab->unit[i] == NULL ? run + 1 : 0;
		if (run == units)
			return (int)(i + 1 - units);
	}
	return -1;
}

static struct slab *add_slab(struct context *context)
{
	struct slab *slab = calloc(1, sizeof(*slab));

	if (slab == NULL)
		return NULL;
	slab->base = address_reserve(GRANULE_BYTES);
	if (slab->base == 0 || !state_take(context->card, HOLDING_MEMORY, GRANULE_BYTES)) {
		if (slab->base != 0)
			address_release(slab->base, GRANULE_BYTES);
		free(slab);
		return NULL;
	}
	slab->context = context;
	slab->next = context->slabs;
	context->slabs = slab;
	address_set_slab(slab->base, slab);
	return slab;
}

static void drop_slab(struct slab *slab)
{
	struct slab **link = &slab->context->slabs;

	while (*link != slab)
		link = &(*link)->next;
	*link = slab->next;
	state_give(slab->context->card, HOLDING_MEMORY, GRANULE_BYTES);
	address_release(slab->base, GRANULE_BYTES);
	free(slab);
}

static struct region *allocate_small(struct context *context, uint64_t bytes)
{
	unsigned int units = (unsigned int)(round_up(bytes, UNIT_BYTES) / UNIT_BYTES);
	struct slab *slab = context->slabs;
	int first = -1;

	for (; slab != NULL; slab = slab->next) {
		first = find_gap(slab, units);
		if (first >= 0)
			break;
	}
	if (slab == NULL) {
		slab = add_slab(context);
		first = 0;
	}
	if (slab == NULL)
		return NULL;
	CUdeviceptr base = slab->base + (CUdeviceptr)first * UNIT_BYTES;
	struct region *region = add_region(REGION_SMALL, base, bytes, context->ordinal);
	if (region == NULL) {
		if (slab->used_units == 0)
			drop_slab(slab);
		return NULL;
	}
	region->slab = slab;
	region->context = context;
	for (unsigned int i = 0; i < units; i++)
		slab->unit[(unsigned int)first + i] = region;
	slab->used_units += units;
	return region;
}

static void release_small(struct region *region)
{
	struct slab *slab = region->slab;
	unsigned int first = (unsigned int)((region->base - slab->base) / UNIT_BYTES);
	unsigned int units = (unsigned int)(round_up(region->bytes, UNIT_BYTES) / UNIT_BYTES);

	for (unsigned int i = 0; i < units; i++)
		slab->unit[first + i] = NULL;
	slab->used_units -= units;
	if (slab->used_units == 0)
		drop_slab(slab);
	remove_region(region);
}

/* --- whole granules ------------------------------------------------------------------------- */

static struct region *allocate_large(struct context *context, uint64_t bytes)
{
	if (bytes > ADDRESS_BYTES)
		return NULL;
	uint64_t taken = round_up(bytes, GRANULE_BYTES);
	if (!state_take(context->card, HOLDING_MEMORY, taken))
		return NULL;
	CUdeviceptr base = address_reserve(taken);
	struct region *region =
		base != 0 ? memory_describe(REGION_LINEAR, base, bytes, context->ordinal) : NULL;
	if (region == NULL) {
		if (base != 0)
			address_release(base, taken);
		state_give(context->card, HOLDING_MEMORY, taken);
		return NULL;
	}
	region->taken_bytes = taken;
	region->context = context;
	return region;
}

struct region *memory_allocate(struct context *context, uint64_t bytes)
{
	return bytes <= SMALL_BYTES ? allocate_small(context, bytes)
				    : allocate_large(context, bytes);
}

void memory_release(struct region *region)
{
	CUdeviceptr base = region->base;
	uint64_t bytes = region->bytes;

	switch (region->kind) {
	case REGION_SMALL:
		release_small(region);
		return;
	case REGION_POOL:
		pool_free(region);
		return;
	case REGION_MANAGED:
		state_give(device_card(region->ordinal), HOLDING_HIDDEN, region->taken_bytes);
		remove_region(region);
		/* NOLINTNEXTLINE(performance-no-int-to-ptr) */
		(void)munmap((void *)(uintptr_t)base, bytes);
		return;
	case REGION_HOST:
	case REGION_REGISTERED:
		remove_region(region);
		return;
	case REGION_VIRTUAL:
		memory_undescribe(region);
		return;
	case REGION_LINEAR:
	case REGION_GRAPH:
	case REGION_GLOBAL:
	case REGION_IMPORT:
		break;
	}
	state_give(device_card(region->ordinal), HOLDING_MEMORY, region->taken_bytes);
	memory_undescribe(region);
	address_release(base, bytes);
}

static struct region *find_freed(const struct context *context)
{
	for (struct region *region = regions; region != NULL; region = region->next)
		if (region->freed && !region->going && region->context == context)
			return region;
	return NULL;
}

/* Whoever waits next finds nothing of it, and goes on. A test may hold a call here, while the card
 * still has the memory. */
void memory_release_freed(const struct context *context)
{
	struct region *region;

	while ((region = find_freed(context)) != NULL) {
		region->going = true;
		if (state_map()->faults_high != 0) {
			driver_unlock(NULL);
			(void)state_fault("freed memory goes back");
			driver_lock();
		}
		memory_release(region);
	}
}

static void forget_in(struct region *list, const struct context *context)
{
	for (struct region *region = list; region != NULL;) {
		struct region *next = region->next;
		if (region->context == context)
			memory_release(region);
		region = next;
	}
}

void memory_forget_context(struct context *context)
{
	forget_in(regions, context);
	forget_in(outside, context);
}

char *memory_contents(CUdeviceptr address, uint64_t *bytes)
{
	struct region *region = memory_find(address);

	if (region == NULL) {
		/* Not ours: the application's own memory, unless it is a number of ours. */
		/* NOLINTNEXTLINE(performance-no-int-to-ptr) */
		return address_is_device(address) ? NULL : (char *)(uintptr_t)address;
	}
	uint64_t offset = address - region->base;
	if (*bytes > region->bytes - offset)
		*bytes = region->bytes - offset;
	if (!address_is_device(region->base)) {
		/* NOLINTNEXTLINE(performance-no-int-to-ptr) */
		return (char *)(uintptr_t)address;
	}
	if (region->contents == NULL) {
		void *memory = mmap(NULL, region->bytes, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (memory == MAP_FAILED)
			return NULL;
		region->contents = memory;
	}
	return region->contents + offset;
}

/* --- entry points: device memory ------------------------------------------------------------ */

static CUresult allocate(const char *function, CUdeviceptr *out, uint64_t bytes)
{
	struct context *context = NULL;
	CUresult status = enter_unsafe_context(function, out != NULL && bytes != 0, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	const struct region *region = memory_allocate(context, bytes);
	if (region == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = region->base;
	return CUDA_SUCCESS;
}

CUDA_API(cuMemAlloc_v2, (CUdeviceptr * out, size_t bytes))
{
	return allocate(__func__, out, bytes);
}

/* Rows of a multiple of 512 B (520 B wide: pitch 1,024, measured). */
static CUresult allocate_pitch(const char *function, CUdeviceptr *out, size_t *pitch, size_t width,
			       size_t height, unsigned int element)
{
	bool valid = pitch != NULL && width != 0 && height != 0 &&
		     (element == 4 || element == 8 || element == 16);
	size_t row = round_up(width, PITCH_BYTES);
	uint64_t bytes = 0;

	/* INVALID_VALUE if nothing is left of it in 64 bits (H200, driver 580). */
	if (valid && __builtin_mul_overflow(row, height, &bytes) && bytes != 0)
		bytes = ADDRESS_BYTES + 1;
	CUresult status = allocate(function, valid ? out : NULL, bytes);
	if (status == CUDA_SUCCESS)
		*pitch = row;
	return status;
}

CUDA_API(cuMemAllocPitch_v2,
	 (CUdeviceptr * out, size_t *pitch, size_t width, size_t height, unsigned int element))
{
	return allocate_pitch(__func__, out, pitch, width, height, element);
}

static CUresult free_device(const char *function, CUdeviceptr address)
{
	CUresult status = enter_unsafe(function, true);
	if (status != CUDA_SUCCESS || address == 0)
		return status;
	DRIVER_LOCKED();
	struct region *region = memory_find(address);
	if (region == NULL || region->base != address || region->freed)
		return CUDA_ERROR_INVALID_VALUE;
	switch (region->kind) {
	case REGION_MANAGED:
	case REGION_LINEAR:
	case REGION_SMALL:
		memory_release(region);
		return CUDA_SUCCESS;
	case REGION_GRAPH:
		return graph_free(region, NULL);
	case REGION_POOL:
		pool_free_at_once(region);
		return CUDA_SUCCESS;
	case REGION_VIRTUAL:
	case REGION_GLOBAL:
	case REGION_IMPORT:
	case REGION_HOST:
	case REGION_REGISTERED:
		break;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUDA_API(cuMemFree_v2, (CUdeviceptr address))
{
	return free_device(__func__, address);
}

/* Pointers of 32 bits cannot name anything here. */
CUDA_API(cuMemAlloc, (CUdeviceptr_v1 * out, unsigned int bytes))
{
	CUresult status = enter(__func__, out != NULL && bytes != 0);

	return status != CUDA_SUCCESS ? status : CUDA_ERROR_NOT_SUPPORTED;
}

CUDA_API(cuMemFree, (CUdeviceptr_v1 address))
{
	return free_device(__func__, address);
}

CUDA_API(cuMemAllocManaged, (CUdeviceptr * out, size_t bytes, unsigned int flags))
{
	struct context *context = NULL;
	CUresult status = enter_unsafe_context(
		__func__, out != NULL && bytes != 0 && (flags == 1 || flags == 2), &context);
	if (status != CUDA_SUCCESS)
		return status;
	/* The machine's own memory; it moves to the card when it is prefetched. */
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	DRIVER_LOCKED();
	struct region *region =
		add_region(REGION_MANAGED, (CUdeviceptr)(uintptr_t)memory, bytes, context->ordinal);
	if (region == NULL) {
		(void)munmap(memory, bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	region->context = context;
	*out = region->base;
	return CUDA_SUCCESS;
}

/* --- entry points: questions ---------------------------------------------------------------- */

static CUresult get_info(const char *function, uint64_t *free_bytes, uint64_t *total, bool valid)
{
	struct context *context = NULL;
	CUresult status = enter_context(function, valid, &context);
	if (status != CUDA_SUCCESS)
		return status;
	const struct fake_card *card = device_describe(context->ordinal);
	uint64_t used = state_used_bytes(context->card);
	*total = card->memory_bytes - card->reserved_bytes;
	*free_bytes = used < card->memory_bytes ? card->memory_bytes - used : 0;
	return CUDA_SUCCESS;
}

CUDA_API(cuMemGetInfo_v2, (size_t * free_bytes, size_t *total))
{
	uint64_t free_now = 0;
	uint64_t all = 0;
	CUresult status = get_info(__func__, &free_now, &all, free_bytes != NULL && total != NULL);

	if (status != CUDA_SUCCESS)
		return status;
	*free_bytes = free_now;
	*total = all;
	return CUDA_SUCCESS;
}

CUDA_API(cuMemGetInfo, (unsigned int *free_bytes, unsigned int *total))
{
	uint64_t free_now = 0;
	uint64_t all = 0;
	CUresult status = get_info(__func__, &free_now, &all, free_bytes != NULL && total != NULL);

	if (status != CUDA_SUCCESS)
		return status;
	*free_bytes = free_now > UINT32_MAX ? UINT32_MAX : (unsigned int)free_now;
	*total = all > UINT32_MAX ? UINT32_MAX : (unsigned int)all;
	return CUDA_SUCCESS;
}

CUDA_API(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t *bytes, CUdeviceptr address))
{
	struct context *context = NULL;
	CUresult status = enter_context(__func__, true, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	const struct region *region = memory_find(address);
	if (region == NULL)
		return CUDA_ERROR_NOT_FOUND;
	if (base != NULL)
		*base = region->base;
	if (bytes != NULL)
		*bytes = region->bytes;
	return CUDA_SUCCESS;
}

static bool on_host(const struct region *region)
{
	return region->kind == REGION_HOST || region->kind == REGION_REGISTERED;
}

static CUresult pointer_attribute(void *out, int attribute, CUdeviceptr address)
{
	const struct region *region = memory_find(address);

	if (region == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(struct context **)out = region->context;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned int *)out = on_host(region) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)out = address;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (address_is_device(address))
			return CUDA_ERROR_INVALID_VALUE;
		*(CUdeviceptr *)out = address;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)out = region->number;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned int *)out = region->kind == REGION_MANAGED;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)out = region->ordinal;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)out = region->base;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)out = region->bytes;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned int *)out = 1;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(struct pool **)out = region->pool;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUDA_API(cuPointerGetAttribute, (void *out, int attribute, CUdeviceptr address))
{
	CUresult status = enter(__func__, out != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	return pointer_attribute(out, attribute, address);
}

static bool attribute_is_wide(int attribute)
{
	static const int wide[] = {
		CU_POINTER_ATTRIBUTE_CONTEXT,          CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
		CU_POINTER_ATTRIBUTE_HOST_POINTER,     CU_POINTER_ATTRIBUTE_BUFFER_ID,
		CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
		CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
	};

	for (size_t i = 0; i < ARRAY_LEN(wide); i++)
		if (wide[i] == attribute)
			return true;
	return false;
}

/* Never fails for a pointer that it does not know: the answers are then 0. */
CUDA_API(cuPointerGetAttributes,
	 (unsigned int count, const int *attributes, void **out, CUdeviceptr address))
{
	CUresult status = enter(__func__, count != 0 && attributes != NULL && out != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	for (unsigned int i = 0; i < count; i++) {
		if (pointer_attribute(out[i], attributes[i], address) == CUDA_SUCCESS)
			continue;
		memset(out[i], 0, attribute_is_wide(attributes[i]) ? 8 : 4);
	}
	return CUDA_SUCCESS;
}

/* --- entry points: host memory, which no card pays for ------------------------------------- */

static CUresult allocate_host(const char *function, void **out, size_t bytes, unsigned int flags)
{
	struct context *context = NULL;
	CUresult status = enter_unsafe_context(function, out != NULL && bytes != 0, &context);
	if (status != CUDA_SUCCESS)
		return status;
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	DRIVER_LOCKED();
	struct region *region =
		add_region(REGION_HOST, (CUdeviceptr)(uintptr_t)memory, bytes, context->ordinal);
	if (region == NULL) {
		(void)munmap(memory, bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	region->flags = flags;
	*out = memory;
	return CUDA_SUCCESS;
}

CUDA_API(cuMemAllocHost, (void **out, unsigned int bytes))
{
	return allocate_host(__func__, out, bytes, 0);
}

CUDA_API(cuMemAllocHost_v2, (void **out, size_t bytes))
{
	return allocate_host(__func__, out, bytes, 0);
}

CUDA_API(cuMemHostAlloc, (void **out, size_t bytes, unsigned int flags))
{
	return allocate_host(__func__, out, bytes, flags);
}

CUDA_API(cuMemFreeHost, (void *memory))
{
	CUresult status = enter_unsafe(__func__, memory != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct region *region = memory_find((CUdeviceptr)(uintptr_t)memory);
	if (region == NULL || region->kind != REGION_HOST ||
	    region->base != (CUdeviceptr)(uintptr_t)memory)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t bytes = region->bytes;
	memory_release(region);
	(void)munmap(memory, bytes);
	return CUDA_SUCCESS;
}

static CUresult register_host(const char *function, void *memory, size_t bytes, unsigned int flags)
{
	struct context *context = NULL;
	CUresult status = enter_unsafe_context(function, memory != NULL && bytes != 0, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (memory_find((CUdeviceptr)(uintptr_t)memory) != NULL)
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	struct region *region = add_region(REGION_REGISTERED, (CUdeviceptr)(uintptr_t)memory, bytes,
					   context->ordinal);
	if (region == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	region->flags = flags;
	return CUDA_SUCCESS;
}

CUDA_API(cuMemHostRegister, (void *memory, size_t bytes, unsigned int flags))
{
	return register_host(__func__, memory, bytes, flags);
}

CUDA_API(cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned int flags))
{
	return register_host(__func__, memory, bytes, flags);
}

CUDA_API(cuMemHostUnregister, (void *memory))
{
	CUresult status = enter_unsafe(__func__, memory != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct region *region = memory_find((CUdeviceptr)(uintptr_t)memory);
	if (region == NULL || region->kind != REGION_REGISTERED)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	memory_release(region);
	return CUDA_SUCCESS;
}

static CUresult host_device_pointer(const char *function, CUdeviceptr *out, void *memory,
				    unsigned int flags)
{
	CUresult status = enter(function, out != NULL && memory != NULL && flags == 0);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	const struct region *region = memory_find((CUdeviceptr)(uintptr_t)memory);
	if (region == NULL || !on_host(region))
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUdeviceptr)(uintptr_t)memory;
	return CUDA_SUCCESS;
}

CUDA_API(cuMemHostGetDevicePointer_v2, (CUdeviceptr * out, void *memory, unsigned int flags))
{
	return host_device_pointer(__func__, out, memory, flags);
}

CUDA_API(cuMemHostGetFlags, (unsigned int *out, void *memory))
{
	CUresult status = enter(__func__, out != NULL && memory != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	const struct region *region = memory_find((CUdeviceptr)(uintptr_t)memory);
	if (region == NULL || !on_host(region))
		return CUDA_ERROR_INVALID_VALUE;
	*out = region->flags;
	return CUDA_SUCCESS;
}
