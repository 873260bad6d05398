# The service in a small image: run-time packages only, exactly those of requirements.lock, checked by hash.
#
#   docker build -t runward .
#
# docker-compose.yml runs it as a whole. Alone, with its SQLite file in a volume, it is first given a key, because without one it listens
# inside its own container only:
#
#   export RUNWARD_SECRET_KEY=$(openssl rand -hex 32)      # keep it: it encrypts what is stored
#   docker run --rm -v runward:/data -e RUNWARD_SECRET_KEY runward sh -c 'runward migrate && runward keys create --tenant default \
#       --permission runs:read --permission runs:write --permission approvals:decide'
#   docker run -d -p 127.0.0.1:8000:8000 -v runward:/data -e RUNWARD_SECRET_KEY --stop-timeout 40 --read-only --tmpfs /tmp runward
#
# It runs as user 10001 and writes to /data and /tmp alone.

ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
WORKDIR /src
COPY requirements.lock pyproject.toml README.md LICENSE ./
RUN python -m venv /opt/tools \
    && sed -n '/^uv==/,/# via/p' requirements.lock > uv.txt \
    && /opt/tools/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes -r uv.txt \
    && python -m venv --without-pip /opt/runward
COPY migrations migrations
COPY app app
RUN /opt/tools/bin/uv pip install --no-cache --compile-bytecode --python /opt/runward/bin/python \
    --constraints requirements.lock --build-constraints requirements.lock .

FROM python:${PYTHON}-slim
RUN groupadd --gid 10001 runward \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin runward \
    && install --directory --owner=runward --group=runward --mode=0700 /data
COPY --from=build /opt/runward /opt/runward
ENV PATH=/opt/runward/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RUNWARD_HOST=0.0.0.0 \
    RUNWARD_DATABASE_URL=sqlite+aiosqlite:////data/runward.db
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ.get('RUNWARD_PORT', '8000') + '/readyz', timeout=4)"]
CMD ["runward", "serve"]
