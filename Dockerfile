# One image for `kvaware extender` and `kvaware operator`; kube-scheduler's is upstream's.
#   docker build -t REGISTRY/kvaware:TAG .
FROM python:3.13-slim AS build
WORKDIR /src
# The locked dependencies first: they change seldom. The build's own tools come from the other lock file.
COPY requirements.lock requirements-dev.lock ./
RUN python -m venv /opt/kvaware \
 && /opt/kvaware/bin/pip install --no-cache-dir --require-hashes -r requirements.lock \
 && python -m venv /opt/tools \
 && /opt/tools/bin/pip install --no-cache-dir --require-hashes -r requirements-dev.lock
COPY . .
RUN /opt/tools/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/kvaware/bin/pip install --no-cache-dir --no-deps /wheels/kvaware-*.whl

FROM python:3.13-slim
COPY --from=build /opt/kvaware /opt/kvaware
# The chart mounts the root file system read-only: nothing is written, bytecode neither.
ENV PATH=/opt/kvaware/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["kvaware"]
CMD ["--help"]
