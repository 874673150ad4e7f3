/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated device address space of this process: a range of numbers that no mapping of the
 * machine uses, divided into 2 MiB granules, each of which knows what lies there.
 */
#ifndef FAKE_GPU_ADDRESS_H
#define FAKE_GPU_ADDRESS_H

#include "driver.h"

/* Above what a PIE executable's heap and below what mmap hands out. */
#define ADDRESS_FIRST ((CUdeviceptr)0x20000000000)
#define ADDRESS_BYTES ((uint64_t)16 << 40)

struct region;
struct slab;

/* A free range of whole granules, or 0. The range given back last is handed out first, as real
 * drivers do. All functions here: caller holds the driver lock. */
CUdeviceptr address_reserve(uint64_t bytes);
void address_release(CUdeviceptr base, uint64_t bytes);

bool address_is_device(CUdeviceptr address);

/* What lies at a granule: a region, or a slab of small ones, or nothing. */
void address_set_region(CUdeviceptr base, uint64_t bytes, struct region *region);
void address_set_slab(CUdeviceptr base, struct slab *slab);
struct region *address_region(CUdeviceptr address);
struct slab *address_slab(CUdeviceptr address);

#endif
