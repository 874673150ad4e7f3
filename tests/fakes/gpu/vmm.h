/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of sparse arrays that memory is mapped to. Both: caller holds the driver lock.
 */
#ifndef FAKE_GPU_VMM_H
#define FAKE_GPU_VMM_H

#include "driver.h"

/* End the mappings whose streams have come to their unmapping. */
void vmm_end_unmappings(void);

void vmm_forget_array(const void *array);

#endif
