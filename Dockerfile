# One image for the services, the console and the command, from the wheel and the locked packages.
# The same bytes each time: --build-arg BASE="$(scripts/pin --reference python:3.13-slim)"
ARG PYTHON=3.13
ARG BASE=python:${PYTHON}-slim

FROM ${BASE} AS build
WORKDIR /src
COPY requirements requirements
RUN python -m venv /build && /build/bin/pip install --no-cache-dir --require-hashes -r requirements/dev.lock
RUN python -m venv /opt/rackgate && /opt/rackgate/bin/pip install --no-cache-dir --require-hashes -r requirements/runtime.lock
COPY pyproject.toml README.md ./
COPY shared shared
COPY services services
COPY osmo osmo
COPY invariants invariants
COPY cli cli
COPY deploy deploy
RUN /build/bin/python -m hatchling build -t wheel -d /dist \
 && /opt/rackgate/bin/pip install --no-cache-dir --no-deps --no-index /dist/*.whl

FROM ${BASE}
COPY --from=build /opt/rackgate /opt/rackgate
ENV PATH=/opt/rackgate/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A named volume mounted here takes over this owner, so that the non-root user can write to it.
RUN install -d -o 65532 -g 65532 -m 0755 /state
USER 65532:65532
CMD ["rackgate", "--help"]
