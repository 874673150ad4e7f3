/* SPDX-License-Identifier: Apache-2.0
 *
 * Asks the node agent what to do with a bundle.
 */
#ifndef VGPU_LAUNCHER_AGENT_H
#define VGPU_LAUNCHER_AGENT_H

#include "conf.h"
#include "wire.h"

#include <stdbool.h>

enum agent_outcome {
	AGENT_ANSWERED,
	AGENT_ABSENT,    /* no socket, nobody listening, or gone before it answered */
	AGENT_FORBIDDEN, /* the socket is not for this user */
	AGENT_SILENT,    /* no answer within the verdict's deadline */
	AGENT_TOO_LONG,  /* the request does not fit into a packet */
	AGENT_UNUSABLE,  /* the system refuses a socket, or the socket's path is too long */
};

/* Sends `request` with the bundle's descriptor and sets *reply when answered; the reply's message
 * lives as long as the process. An absent agent is asked again every 100 ms for conf->absent_ms
 * when `patient`: it may be restarting. */
enum agent_outcome agent_ask(const struct conf *conf, const struct request *request, int bundle,
			     bool patient, struct reply *reply);

#endif
