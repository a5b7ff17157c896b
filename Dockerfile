# The image of a master or worker: the package, TensorFlow and the patched Horovod, for CPUs.
# An image with your training is three lines more; see docs/kubernetes.md.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY scripts/versions.env scripts/
RUN . scripts/versions.env \
    && python -m venv /opt/elastic \
    && /opt/elastic/bin/pip install --no-cache-dir "setuptools>=68,<81" wheel packaging cloudpickle \
        psutil pyyaml "cmake>=3.18,<4" "tensorflow==$TENSORFLOW_VERSION"
COPY scripts scripts
RUN PATH="/opt/elastic/bin:$PATH" XDG_CACHE_HOME=/wheels python scripts/build_horovod_wheel
COPY setup.py README.md LICENSE ./
COPY hvd_elastic_keras hvd_elastic_keras
COPY model_zoo model_zoo
RUN /opt/elastic/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/elastic/bin/pip install --no-cache-dir kubernetes $(find /wheels -name '*.whl') \
    && /opt/elastic/bin/pip uninstall --yes cmake

FROM python:3.11-slim-bookworm
# ssh: the client that starts workers on other hosts. openssl: certificates of --tls.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openssh-client openssl \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 elastic
COPY --from=build /opt/elastic /opt/elastic
ENV PATH=/opt/elastic/bin:$PATH PYTHONUNBUFFERED=1
USER elastic
WORKDIR /home/elastic
ENTRYPOINT ["python", "-m", "hvd_elastic_keras.run"]
