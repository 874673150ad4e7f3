# The scheduler cache in its Kubernetes mode, with vgpuctl. `make images` stages what is copied here, so that
# nothing is fetched while it is built, on any architecture.
# `make images` names it: what deploy/docker/base.lock holds.
ARG BASE
FROM ${BASE}
COPY cache/ /
ENV PYTHONPATH=/usr/share/vgpu/python PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["vgpu-scheduler-cache"]
CMD ["serve", "--in-cluster"]
