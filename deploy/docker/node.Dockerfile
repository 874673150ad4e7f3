# The node agent for the DaemonSet, with what it puts on the node. `make images` stages what is copied here, so
# that nothing is fetched while it is built, on any architecture.
#
# `vgpu-on-host PROGRAM` runs vgpu-node-agent or vgpuctl in the host's mount namespace; vgpuctl alone means that.
# `make images` names it: what deploy/docker/base.lock holds.
ARG BASE
FROM ${BASE}
COPY node/ /
ENV PYTHONPATH=/usr/share/vgpu-runtime:/usr/share/vgpu/python PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
ENTRYPOINT ["vgpu-on-host"]
CMD ["vgpu-node-agent", "run"]
