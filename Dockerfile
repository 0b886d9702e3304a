# docker build -t fedpersonal .        installs everything, and trains once on MovieLens-100K
# docker run -it fedpersonal           opens a shell there
FROM debian:bookworm-slim

RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates make python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /fedpersonal
COPY . .
RUN make movielens

ENV PATH="/fedpersonal/.venv/bin:$PATH"
CMD ["bash"]
