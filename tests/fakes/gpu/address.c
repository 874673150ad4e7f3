/* SPDX-License-Identifier: Apache-2.0
 *
 * Device addresses: bump allocation, and ranges of one size reused last in, first out.
 */
#include "address.h"

#include <stdlib.h>
#include <sys/mman.h>

#define GRANULES (ADDRESS_BYTES / GRANULE_BYTES)
#define BUCKETS 1024

struct range {
	CUdeviceptr base;
	uint64_t bytes;
	struct range *next;
};

static uintptr_t *map; /* one word a granule; pages of it that were never used cost nothing */
static uint64_t used_bytes;
static struct range *spare[BUCKETS]; /* by size */

static uintptr_t *granule(CUdeviceptr address)
{
	return &map[(address - ADDRESS_FIRST) / GRANULE_BYTES];
}

bool address_is_device(CUdeviceptr address)
{
	return address >= ADDRESS_FIRST && address - ADDRESS_FIRST < ADDRESS_BYTES;
}

static struct range **bucket(uint64_t bytes)
{
	return &spare[bytes / GRANULE_BYTES % BUCKETS];
}

CUdeviceptr address_reserve(uint64_t bytes)
{
	if (map == NULL) {
		void *memory = mmap(NULL, GRANULES * sizeof(*map), PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (memory == MAP_FAILED)
			return 0;
		map = memory;
	}
	bytes = round_up(bytes, GRANULE_BYTES);
	for (struct range **link = bucket(bytes); *link != NULL; link = &(*link)->next) {
		struct range *found = *link;
		if (found->bytes != bytes)
			continue;
		CUdeviceptr base = found->base;
		*link = found->next;
		free(found);
		return base;
	}
	if (bytes > ADDRESS_BYTES - used_bytes)
		return 0;
	CUdeviceptr base = ADDRESS_FIRST + used_bytes;
	used_bytes += bytes;
	return base;
}

void address_release(CUdeviceptr base, uint64_t bytes)
{
	struct range *range = malloc(sizeof(*range));

	bytes = round_up(bytes, GRANULE_BYTES);
	address_set_region(base, bytes, NULL);
	if (range == NULL)
		return; /* the numbers are lost, nothing else */
	*range = (struct range){.base = base, .bytes = bytes, .next = *bucket(bytes)};
	*bucket(bytes) = range;
}

void address_set_region(CUdeviceptr base, uint64_t bytes, struct region *region)
{
	for (uint64_t offset = 0; offset < bytes; offset += GRANULE_BYTES)
		*granule(base + offset) = (uintptr_t)region;
}

/* A slab is told from a region by the lowest bit, which no pointer of malloc has. */
void address_set_slab(CUdeviceptr base, struct slab *slab)
{
	*granule(base) = (uintptr_t)slab | 1;
}

struct region *address_region(CUdeviceptr address)
{
	if (map == NULL || !address_is_device(address))
		return NULL;
	uintptr_t word = *granule(address);
	/* NOLINTNEXTLINE(performance-no-int-to-ptr) */
	return (word & 1) == 0 ? (struct region *)word : NULL;
}

struct slab *address_slab(CUdeviceptr address)
{
	if (map == NULL || !address_is_device(address))
		return NULL;
	uintptr_t word = *granule(address);
	/* NOLINTNEXTLINE(performance-no-int-to-ptr) */
	return (word & 1) != 0 ? (struct slab *)(word & ~(uintptr_t)1) : NULL;
}
