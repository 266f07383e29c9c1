# Training and evaluation on NVIDIA GPUs. The wheels of torch and vLLM bring CUDA 13 along, so the base image needs none
# of it; the host needs a driver of version 580 or newer and the NVIDIA Container Toolkit.
#
#     docker build --tag agentgym .
#     docker run --rm --gpus all --shm-size 16g --volume "$PWD/runs:/app/runs" agentgym uv run train textcraft-scaling
FROM python:3.12-slim-bookworm

# Triton, which vLLM and torch use, compiles its launchers with a C compiler when they are first called.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ gcc git \
    && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir "uv>=0.13,<0.14" \
    && useradd --create-home --uid 1000 agentgym \
    && install --directory --owner agentgym /app /app/runs

USER agentgym
WORKDIR /app
# UV_NO_SYNC: `uv run` uses what is installed below instead of changing it.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
ARG EXTRAS="--extra vllm"

# The dependencies first, so that a change of the code doesn't install them again.
COPY --chown=agentgym pyproject.toml uv.lock README.md ./
COPY --chown=agentgym packages/agentgym-envs/pyproject.toml packages/agentgym-envs/
COPY --chown=agentgym packages/agentgym-eval/pyproject.toml packages/agentgym-eval/
COPY --chown=agentgym packages/agentgym-trainer/pyproject.toml packages/agentgym-trainer/
RUN uv sync --no-cache --no-default-groups ${EXTRAS} --no-install-workspace

COPY --chown=agentgym . .
RUN uv sync --no-cache --no-default-groups ${EXTRAS}
ENV UV_NO_SYNC=1
RUN uv run train --help > /dev/null

CMD ["uv", "run", "train", "--help"]
