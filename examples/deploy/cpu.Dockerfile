# Serves engines for ONNX Runtime on a CPU:
#   docker build -f examples/deploy/cpu.Dockerfile -t peagle-compile .
#   docker run --rm --read-only -v "$PWD/demo-engine:/engine:ro" -p 8000:8000 peagle-compile
# For Amazon SageMaker, add --target sagemaker. See docs/containers.md.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim-bookworm AS build
WORKDIR /source
RUN python -m venv /opt/peagle
COPY requirements.lock pyproject.toml README.md LICENSE ./
COPY compiler compiler
COPY engines engines
COPY graphs graphs
COPY plugins plugins
COPY src src
# This installs only the runtime, at the locked versions, without torch and transformers.
RUN /opt/peagle/bin/pip install --no-cache-dir --disable-pip-version-check --constraint requirements.lock '.[serve]'

FROM python:${PYTHON}-slim-bookworm AS runtime
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
HEALTHCHECK --start-period=120s --interval=15s --timeout=25s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://localhost:8000/health', timeout=25)"]
CMD ["serve", "/engine", "--host", "0.0.0.0"]
