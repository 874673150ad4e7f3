/* SPDX-License-Identifier: Apache-2.0
 *
 * Every other name that a real libnvidia-ml.so.1 exports. The definitions elsewhere are stronger.
 */
#include "nvml.h"

#define VGPU_NVML_SYMBOL(symbol)                                                                   \
	__attribute__((weak, visibility("default"))) nvmlReturn_t symbol(void);                    \
	__attribute__((weak, visibility("default"))) nvmlReturn_t symbol(void)                     \
	{                                                                                          \
		nvmlReturn_t status = nvml_enter(#symbol, true);                                   \
		return status != NVML_SUCCESS ? status : NVML_ERROR_NOT_SUPPORTED;                 \
	}
#include "fake_driver.gen.h"
