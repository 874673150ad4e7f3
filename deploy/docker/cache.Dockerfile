# The scheduler cache in its Kubernetes mode, with vgpuctl. `make images` stages what is copied here, so that
# nothing is fetched while it is built, on any architecture.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
FROM ${BASE}
COPY cache/ /
ENV PYTHONPATH=/usr/share/vgpu/python PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["vgpu-scheduler-cache"]
CMD ["serve", "--in-cluster"]
