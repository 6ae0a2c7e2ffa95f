# The server in a container: built on the release that it runs on, installed as a Debian package.
#   docker build -t mlx-bun .
#   docker run --rm -p 127.0.0.1:8080:8080 -v mlx-bun:/cache mlx-bun OWNER/NAME
# Models are kept in the volume; without a name the largest one there that fits is served, else the starter.
FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends dpkg-dev
COPY . /src
WORKDIR /src
RUN tools/install && make deb && mv build/*.deb /mlx-bun.deb

FROM debian:bookworm-slim
COPY --from=build /mlx-bun.deb /tmp/mlx-bun.deb
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/mlx-bun.deb ca-certificates python3-pip && \
    rm -rf /var/lib/apt/lists/* /tmp/mlx-bun.deb && useradd --create-home --home-dir /cache mlx-bun
USER mlx-bun
ENV HOME=/cache
VOLUME /cache
EXPOSE 8080
# Inside its own network the container must listen beyond loopback; publish the port on 127.0.0.1, or give --api-key.
ENTRYPOINT ["mlx-bun", "serve", "--host", "0.0.0.0", "--allow-host", "*"]
