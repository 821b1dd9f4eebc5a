# Serves engines of TensorRT plans, on NVIDIA's image. A plan runs only with the TensorRT version that built it;
# `peagle-compile inspect ENGINE` prints that version.
#   docker build -f examples/deploy/gpu.Dockerfile --build-arg EXTRA=tensorrt --build-arg RUNTIME=tensorrt==10.15.1.29 \
#       -t peagle-compile-gpu .
#   docker build -f examples/deploy/gpu.Dockerfile --build-arg EXTRA=rtx --build-arg RUNTIME=tensorrt-rtx==1.7.1.116 \
#       -t peagle-compile-rtx .
#   docker run --rm --gpus all --read-only -v "$PWD/engine:/engine:ro" -p 8000:8000 peagle-compile-gpu
# For Amazon SageMaker, add --target sagemaker. See docs/containers.md.
ARG CUDA=13.0.1

FROM nvidia/cuda:${CUDA}-base-ubuntu24.04 AS python
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*

FROM python AS build
ARG EXTRA
ARG RUNTIME
WORKDIR /source
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/* && \
    python3 -m venv /opt/peagle
COPY requirements.lock pyproject.toml README.md LICENSE ./
COPY compiler compiler
COPY engines engines
COPY graphs graphs
COPY plugins plugins
COPY src src
# This installs only the runtime, at the locked versions, without torch and transformers.
RUN /opt/peagle/bin/pip install --no-cache-dir --disable-pip-version-check --constraint requirements.lock \
    ".[serve,${EXTRA:?must be tensorrt or rtx}]" "${RUNTIME:?must be the version that built the engine, such as tensorrt==10.15.1.29}"

FROM python AS runtime
COPY --from=build /opt/peagle /opt/peagle
ENV PATH=/opt/peagle/bin:$PATH PYTHONDONTWRITEBYTECODE=1
ENTRYPOINT ["peagle-compile"]

# SageMaker runs `IMAGE serve` as root and puts the engine into /opt/ml/model.
FROM runtime AS sagemaker
EXPOSE 8080
# hadolint ignore=DL3002
USER 0
CMD ["serve"]

FROM runtime AS serve
EXPOSE 8000
USER 10001:10001
HEALTHCHECK --start-period=300s --interval=15s --timeout=25s \
    CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://localhost:8000/health', timeout=25)"]
CMD ["serve", "/engine", "--host", "0.0.0.0"]
