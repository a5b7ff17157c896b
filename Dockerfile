# Not built on the machine where it was written: see BUILD.md.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/hvd_elastic_keras
COPY . .
RUN PYTHON=/usr/local/bin/python3 scripts/setup && rm -f .setup.log

FROM python:3.11-slim-bookworm
# An ssh client for the ssh launcher; nothing else is needed at run time.
RUN apt-get update && apt-get install --yes --no-install-recommends openssh-client \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/hvd_elastic_keras /opt/hvd_elastic_keras
ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["/opt/hvd_elastic_keras/scripts/run"]
