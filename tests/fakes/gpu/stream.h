/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams: first in, first out, on the simulated time line.
 */
#ifndef FAKE_GPU_STREAM_H
#define FAKE_GPU_STREAM_H

#include "context.h"

#endif
