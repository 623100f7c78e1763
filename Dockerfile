# To try fallbackd without installing it:
#
#   docker build -t fallbackd .
#   docker run --rm -it fallbackd                       # the demo: one throttled, one missing, one works
#   docker run --rm -it -v ~/.codex:/home/user/.codex -v "$PWD":/home/user/work fallbackd bash
#
# In the shell: npm install -g @openai/codex && fallbackd-client setup. There is no user manager in a
# container, so `setup` starts the daemon in the background.
FROM python:3.12-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends git nodejs npm procps \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --shell /bin/bash user
COPY . /src
RUN python -m venv /opt/fallbackd \
    && /opt/fallbackd/bin/pip install --no-cache-dir --require-hashes -r /src/requirements/run.txt \
    && /opt/fallbackd/bin/pip install --no-cache-dir --no-deps /src
ENV PATH=/opt/fallbackd/bin:/home/user/.npm/bin:/usr/local/bin:/usr/bin:/bin \
    NPM_CONFIG_PREFIX=/home/user/.npm
USER user
RUN mkdir /home/user/work
WORKDIR /home/user/work
CMD ["python", "/src/contrib/demo/demo.py"]
