# syntax=docker/dockerfile:1
# CPU:  docker build --target cpu -t probsa .
# CUDA: docker build --target cuda -t probsa:cuda .     run with --gpus all
#
#   docker run --rm -v "$PWD:/work" probsa probsa demo
#
# A container has 64 MB of shared memory: give --shm-size=2g, or `probsa extract WORK --readers 0`.
# Slides and features are mounted; nothing of them is copied into the image.

FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY recipes recipes
RUN pip install --no-cache-dir build==1.3.0 && python -m build --wheel --outdir /wheels .

FROM python:3.12-slim AS base
ENV PYTHONUNBUFFERED=1 MPLBACKEND=Agg
RUN useradd --create-home --uid 1000 probsa
COPY constraints.txt /wheels/
COPY --from=build /wheels /wheels
WORKDIR /work

FROM base AS cuda
# PyTorch's wheels for Linux bring the CUDA libraries; the host needs only the driver.
RUN wheel=$(ls /wheels/*.whl) \
    && pip install --no-cache-dir -c /wheels/constraints.txt "${wheel}[slides,ct,encoders]"
USER 1000
CMD ["probsa", "doctor"]

FROM base AS cpu
RUN wheel=$(ls /wheels/*.whl) \
    && pip install --no-cache-dir -c /wheels/constraints.txt \
        --extra-index-url https://download.pytorch.org/whl/cpu "${wheel}[slides,ct,encoders]"
USER 1000
CMD ["probsa", "doctor"]
