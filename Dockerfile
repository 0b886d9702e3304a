# docker build -t fedpersonal .
#   installs everything, and trains once on MovieLens-100K. Add --platform=linux/amd64 where the
#   system is neither Linux nor macOS on ARM.
# docker run --rm -it --user "$(id -u):$(id -g)" -v "$PWD:/work" fedpersonal
#   opens a shell. Its folder, /work, is yours: tables that lie there are read from it, and results/
#   comes out there. For a table ratings.csv, type
#     fedpersonal ratings --ratings_file=ratings.csv --size=quick
FROM debian:bookworm-slim

RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates make python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home fedpersonal \
    && install --directory --owner=fedpersonal --group=fedpersonal /fedpersonal /work

USER fedpersonal
WORKDIR /fedpersonal
COPY --chown=fedpersonal:fedpersonal . .
RUN make movielens

# Whoever --user names has no home of its own.
ENV PATH="/fedpersonal/.venv/bin:$PATH" HOME=/tmp
WORKDIR /work
CMD ["bash"]
