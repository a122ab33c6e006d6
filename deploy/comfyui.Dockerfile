# The image of Ray nodes for endpoints with ComfyUI: your own image with a ComfyUI install, to which
# this file adds Darkroom. docs/comfyui-endpoints.md describes its use.
#
#   docker build -f deploy/comfyui.Dockerfile -t darkroom-comfyui:0.2.0 \
#     --build-arg BASE=registry.example.com/comfyui:1 .
#
# BASE is Linux on x86-64 with glibc and bash, and with wget or apt-get. The user 10001 must be able
# to read the install. The interpreter and the packages of BASE are not changed.
ARG BASE
FROM ghcr.io/astral-sh/uv:0.13.9 AS uv

FROM ${BASE}
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
USER 0:0

# KubeRay's probes call bash and wget, and Ray needs a name for its user.
# hadolint ignore=DL3008
RUN if ! command -v wget; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends wget \
        && rm -rf /var/lib/apt/lists/*; \
    fi \
    && { getent passwd 10001 || useradd --uid 10001 --user-group --no-create-home darkroom; }

# All Ray nodes need the same minor version of Python. The one of BASE may be another.
COPY --from=uv /uv /usr/local/bin/uv
ENV UV_PYTHON_INSTALL_DIR=/opt/python
RUN uv python install --no-bin 3.11 \
    && "$(uv python find --managed-python 3.11)" -m venv /opt/darkroom

# Darkroom's own torch is not used on these nodes, so the one for CPUs is enough.
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /build
COPY deploy/requirements-cpu.txt deploy/
RUN /opt/darkroom/bin/pip install --no-cache-dir --require-hashes -r deploy/requirements-cpu.txt \
    --extra-index-url "$TORCH_CPU_INDEX"

COPY pyproject.toml README.md LICENSE ./
COPY actors actors
COPY cli cli
COPY client client
COPY comfyui comfyui
COPY engine engine
COPY events events
COPY local local
COPY operations operations
COPY serve_app serve_app
COPY settings settings
COPY storage storage
COPY telemetry telemetry
RUN /opt/darkroom/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && rm -rf /build/*

# KubeRay calls `ray`. Darkroom's folder is the last one, so that `python` stays that of BASE.
ENV PATH="$PATH:/opt/darkroom/bin" \
    RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL=minor \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT []
CMD ["bash"]
